"""Administration: revive, reassign, purge, change waiting tasks, junctions, locks, ticks, workers, the audit trail."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Literal

from airflow_provider_taskq.queue.arguments import DurationLike
from airflow_provider_taskq.queue.connection import FunctionCaller, all_or_nothing
from airflow_provider_taskq.queue.encoding import state_number
from airflow_provider_taskq.queue.errors import InvalidTask
from airflow_provider_taskq.queue.models import Json, Junction, NewTask, Result, Revival, State
from airflow_provider_taskq.queue.reports import Row, report_row
from airflow_provider_taskq.queue.task_input import TaskChunk, split_into_chunks

_ALL = 2**31 - 1
_ZERO = timedelta(0)


class AdminMixin(FunctionCaller):
    """Verbs of operators and schedulers. None of them ever waits for a task that another transaction holds."""

    # Ended tasks: EXPIRED, FAILED, SUSPENDED, FILTERED or SUCCEEDED

    def revive(
        self,
        topic: str,
        state: State | str | None = None,
        revival: Revival | str = Revival.RESET,
        *,
        sequences: Sequence[int] | None = None,
        from_: int = 0,
        to: int | None = None,
        size: int | None = None,
    ) -> dict[int, int]:
        """Start ended tasks again. Return the sequence that continues each task, by the task's sequence.

        The tasks are either those of a state from `from_` to `to`, without those that another transaction holds, or the
        tasks of `sequences`, all or none.

        :param revival: RESET makes the tasks themselves READY in their original place. The others mark the tasks
            RECREATED, and then push a copy of each by that insertion, in order of sequence.
        :param from_: the lowest sequence, included.
        :param to: the highest sequence, included; None for no limit.
        :param size: the most tasks of a state, those with the lowest sequences; None for all.
        :raises InvalidState: for a task of `sequences` that has not ended or does not exist.
        """
        rows = self._rows(
            "SELECT old, new FROM taskq.revive(%s::text, %s::text, %b::bigint[], %s::int, %s::bigint, %s::bigint,"
            " %s::bigint)",
            (topic, Revival.of(revival), sequences, state_number(state), from_, to, size),
        )
        return dict(rows)

    def reassign(
        self,
        topic: str,
        result: Result | str,
        *,
        sequences: Sequence[int] | None = None,
        state: State | str | None = None,
        from_: int = 0,
        to: int | None = None,
    ) -> int:
        """Override the result of ended tasks, which keep their output. Return the number of tasks.

        The method selects tasks like `revive`. Tasks of a state that have this result already are not counted.

        :raises InvalidState: for a task of `sequences` that has not ended or does not exist.
        """
        return self._number(
            "SELECT taskq.reassign(%s::text, %s::int, %b::bigint[], %s::int, %s::bigint, %s::bigint)",
            (topic, int(Result.of(result)), sequences, state_number(state), from_, to),
        )

    def lock_tasks(self, topic: str, sequences: Sequence[int], states: Iterable[State | str]) -> list[int]:
        """Lock the tasks that are in one of `states` until the transaction ends. Return their sequences.

        Tasks that another transaction holds are left out.
        """
        locked: list[int] = self._value(
            "SELECT taskq.lock_tasks(%s::text, %b::bigint[], %b::int[])", (topic, sequences, _numbers(states))
        )
        return locked

    # Purge

    def purge(
        self,
        topic: str,
        from_: int = 0,
        to: int | None = None,
        state: State | str | None = None,
        *,
        size: int | None = None,
        sequences: Sequence[int] | None = None,
    ) -> int:
        """Remove tasks for good. Return the number of tasks.

        A task that another transaction holds stays.

        :param from_: the lowest sequence, included.
        :param to: the highest sequence, included; None for no limit.
        :param state: the state of the tasks. None: FAILED to REDUNDANT, which spares ACTIVE, READY and EXPIRED tasks.
        :param size: the most tasks, those with the lowest sequences, so that a job may commit between its calls.
        :param sequences: the tasks, in any state but ACTIVE. The range and the size then mean nothing.
        """
        return self._number(
            "SELECT taskq.purge(%s::text, %s::bigint, %s::bigint, %s::int, %s::bigint, %b::bigint[])",
            (topic, from_, to, state_number(state), size, sequences),
        )

    def purge_all(self, topic: str) -> int:
        """Remove every task of a topic, also ACTIVE ones. Return the number of tasks.

        A task that another transaction is polling or completing at this moment stays.
        """
        return self._number("SELECT taskq.purge_all(%s::text)", (topic,))

    def purge_past_ttl(self, topic: str, size: int = _ALL) -> int:
        """Remove tasks that have failed and whose time to live is over. Return the number of tasks.

        These are FAILED tasks past their time to live, and READY tasks that are also past the `horizon` of the retry
        policy. Until then, and without a horizon, a READY task has retries left and stays. A task without a time to
        live stays.

        :param size: the most tasks of each state.
        """
        return self._number("SELECT taskq.purge_past_ttl(%s::text, %s::int)", (topic, size))

    def purge_owners(self, older_than: DurationLike) -> int:
        """Remove owners that have no valid lease and were inactive for `older_than`. Return the number of owners.

        A registration, a heartbeat and a release count as activity. Owners that hold tasks stay, and owners that were
        the last to hold a stored task, because `TaskInfo.owner` names them.

        The call also removes reports of drains, last batches of streams, and what `release_groups_once` remembers, of
        that age: a caller that still repeats `release_groups_once` then waits for these groups again.

        :param older_than: time since the last activity of the owner.
        """
        return self._number("SELECT taskq.purge_owners(%s::interval)", (older_than,))

    # Waiting tasks

    def change_waiting(
        self,
        topic: str,
        sequences: Iterable[int],
        *,
        due: datetime | Literal["now"] | None = None,
        priority: int | None = None,
        attempts: int | None = None,
        paused: bool | None = None,
    ) -> int:
        """Change READY tasks, all or none. Return the number of changed tasks.

        Dependencies, the probe and the pause of the topic still keep a task back.

        :param due: when the tasks are due, which ends their pause. A task that is due already keeps its place if the
            moment has passed.
        :param priority: -100 to 100; higher first.
        :param attempts: the number of attempts that count as used. After a push it is 0; `max_attempts - 1` leaves one.
        :param paused: True: no poll hands the tasks out until they are resumed. False resumes them: a retry is due now,
            any other task at the time that its push set.
        :raises InvalidTask: for a value out of range.
        :raises InvalidState: if one of the tasks is not READY.
        """
        call = "SELECT taskq.change_waiting(%s::text, %b::bigint[], %s::timestamptz, %s::int, %s::int, %s::boolean)"
        return self._number(call, (topic, sequences, due, priority, attempts, paused))

    def cancel(self, topic: str, sequences: Iterable[int]) -> int:
        """End READY tasks as FILTERED without running them, all or none. Return the number of tasks.

        `revive` undoes a cancel.

        :raises InvalidState: if one of the tasks is not READY.
        """
        return self._number("SELECT taskq.cancel(%s::text, %b::bigint[])", (topic, sequences))

    # Junctions

    def junction(
        self, topic: str, groups: Iterable[Iterable[str]], junction: Junction | str = Junction.SINGULAR
    ) -> set[str]:
        """Release groups of identifiers: their SUSPENDED tasks start again. Return the identifiers of those tasks.

        A group is released when each of its identifiers has a SUSPENDED task (SINGULAR), or a task in any state but
        REDUNDANT (ETERNAL). Each group is judged alone, by the states before the call. A group with a suspended task
        that another transaction holds is left for a later call.
        """
        return set(
            self._value(
                "SELECT taskq.junction(%s::text, %b::text[], %b::int[], %s::text)",
                (topic, *_group_members(groups), Junction(junction)),
            )
        )

    def release_groups_once(
        self, name: str, topic: str, groups: Iterable[Iterable[str]], junction: Junction | str = Junction.SINGULAR
    ) -> list[int]:
        """Release groups like `junction`, each group once under `name`. Return the places of the unreleased groups.

        A caller that waits until all groups have been released repeats this call. The database remembers each released
        group by its identifiers, so the caller gets the same answer after a crash.
        """
        return list(
            self._value(
                "SELECT taskq.release_groups_once(%s::text, %s::text, %b::text[], %b::int[], %s::text)",
                (name, topic, *_group_members(groups), Junction(junction)),
            )
        )

    # Locks

    def lock(self, name: str, by: str, at_most: DurationLike, at_least: DurationLike = _ZERO) -> bool:
        """Take a lock by name for `by`, or extend it. Return False, without waiting, if another holder has the lock.

        Other transactions see the lock as soon as the call returns, before the commit and also if a rollback follows.

        :param at_most: the lock ends after this time, at most 3650 days, unless it is released earlier.
        :param at_least: even after a release, the lock does not end before this time.
        """
        return self._flag(
            "SELECT taskq.lock(%s::text, %s::text, %s::interval, %s::interval)",
            (name, by, at_most, at_least),
        )

    def unlock(self, name: str, by: str) -> bool:
        """Release a lock. Return False if `by` does not hold the lock.

        Other holders can take the lock only after its `at_least`.
        """
        return self._flag("SELECT taskq.unlock(%s::text, %s::text)", (name, by))

    # Ticks

    def install_ticks(
        self, topic: str, prefix: str, config_hash: str, ticks: Iterable[tuple[datetime, NewTask | Json]]
    ) -> int:
        """Add the ticks that are missing, and return their number. A tick that exists is never changed.

        The call first removes the waiting ticks of the same prefix with another hash; held and ended ticks stay. Any
        number of schedulers may install the same ticks; they wait for each other's transactions. A tick's task has the
        identifier `prefix/config_hash/time`, with the time in UTC as 20261121T103000.000000Z.

        :param ticks: nominal times, each with a payload that is due then, or with a NewTask, whose identifier is
            replaced and whose own due time counts.
        :raises InvalidTask: for a nominal time without a time zone.
        :raises TaskQueueError: above READ COMMITTED.
        """
        # The prefix stands for the identifier, which only the SQL function knows.
        given = [
            (moment, replace(what, identifier=prefix) if isinstance(what, NewTask) else NewTask(prefix, what))
            for moment, what in ticks
        ]
        for place, (moment, _) in enumerate(given):
            if getattr(moment, "tzinfo", None) is None:
                raise InvalidTask(f"topic {topic!r}, task at position {place}: its nominal time has no time zone")
        moments = [moment for moment, _ in given]
        chunks = list(split_into_chunks(topic, (task for _, task in given), self.json_encoder()))
        chunks = chunks or [TaskChunk(topic, 0, [], [])]
        with all_or_nothing(self.conn) if len(chunks) > 1 else nullcontext():
            return sum(self._install_chunk(topic, prefix, config_hash, chunk, moments) for chunk in chunks)

    def uninstall_ticks(self, topic: str, prefix: str, config_hash: str) -> int:
        """Remove the waiting ticks of exactly this prefix and hash. Return their number."""
        return self._number("SELECT taskq.uninstall_ticks(%s::text, %s::text, %s::text)", (topic, prefix, config_hash))

    def last_tick(self, topic: str, prefix: str, config_hash: str) -> datetime | None:
        """Return the nominal time of the latest tick of a prefix and a hash, in any state; None if there is none."""
        call = "SELECT taskq.last_tick(%s::text, %s::text, %s::text)"
        found: datetime | None = self._value(call, (topic, prefix, config_hash))
        return found

    def _install_chunk(
        self, topic: str, prefix: str, config_hash: str, chunk: TaskChunk, moments: list[datetime]
    ) -> int:
        """Install the ticks of one chunk; `moments` are those of all chunks."""
        columns = chunk.columns()[1:]  # the SQL function makes the identifiers
        return self._number(
            "SELECT taskq.install_ticks(%s::text, %s::text, %s::text, %b::timestamptz[], %b::text[], %b::text[],"
            " %b::boolean[], %b::timestamptz[], %b::text[]::interval[], %b::text[]::interval[], %b::int[],"
            " %s::int, %b::int[], %b::text[], %b::text[])",
            (
                *(topic, prefix, config_hash, moments[chunk.offset : chunk.offset + len(chunk.tasks)]),
                *(*columns, chunk.offset, *chunk.dependencies()),
            ),
        )

    # The switch of workers, by name: it outlives their processes

    def activate_worker(self, name: str) -> bool | None:
        """Switch workers of a name on, and notify them at the commit.

        :return: the previous setting; None if this name had none.
        """
        return self._set_worker(name, active=True)

    def deactivate_worker(self, name: str) -> bool | None:
        """Switch workers of a name off, and notify them at the commit. Return the same as `activate_worker`."""
        return self._set_worker(name, active=False)

    def is_worker_active(self, name: str) -> bool | None:
        """Return whether workers of a name are switched on; None if the name has no setting."""
        active: bool | None = self._value("SELECT taskq.is_worker_active(%s::text)", (name,))
        return active

    def workers(self) -> dict[str, bool]:
        """Return whether workers are switched on, by name, for all names with a setting."""
        return dict(self._rows("SELECT name, active FROM taskq.workers()"))

    def forget_worker(self, name: str) -> bool:
        """Remove the setting of a worker's name. Return False if the name has no setting."""
        return self._flag("SELECT taskq.forget_worker(%s::text)", (name,))

    def _set_worker(self, name: str, *, active: bool) -> bool | None:
        previous: bool | None = self._value("SELECT taskq.set_worker_active(%s::text, %s::boolean)", (name, active))
        return previous

    # The access of database roles

    def grant_access(self, role: str, kind: str, topics: Iterable[str] | None = None) -> None:
        """Grant a role access as producer, consumer, reader or operator, to these topics or to all. Grants add up.

        Only the owner of the schema may call this and the two methods below.
        """
        topics = None if topics is None else list(topics)
        self._rows("SELECT taskq.grant_access(%s::text, %s::text, %s::text[])", (role, kind, topics))

    def revoke_access(self, role: str, kind: str | None = None, topics: Iterable[str] | None = None) -> None:
        """Revoke access that was granted to a role: all, one kind, or one kind for these topics."""
        topics = None if topics is None else list(topics)
        self._rows("SELECT taskq.revoke_access(%s::text, %s::text, %s::text[])", (role, kind, topics))

    def grants(self) -> list[Row]:
        """Return what was granted: `role`, `kind` and `topic`, which is None for every topic."""
        return self._fetch(
            report_row,
            "SELECT g.role::text, g.kind, nullif(g.topic, '') AS topic FROM taskq.granted g"
            " ORDER BY g.role, g.kind, g.topic",
        )

    # The audit trail

    def set_actor(self, actor: str) -> None:
        """Name the person on whose behalf this transaction acts, for the history of the tasks that it changes."""
        self._rows("SELECT set_config('taskq.actor', %s::text, true)", (actor,))

    def record_action(self, action: str, topic: str | None, what: str, count: int) -> None:
        """Add an action of this transaction to the audit trail, under the name given to `set_actor`.

        :raises TaskQueueError: without an actor.
        """
        self._rows("SELECT taskq.record_action(%s::text, %s::text, %s::text, %s::bigint)", (action, topic, what, count))

    def audit_trail(self, topic: str | None = None, *, after: int | None = None, size: int = 50) -> list[Row]:
        """Return actions on a topic or on all topics, the newest first.

        :param after: the `audit_id` of the last entry of the page before.
        :param size: the most actions.
        """
        return self._fetch(
            report_row,
            "SELECT * FROM taskq.audit_trail(%s::text, %s::bigint, %s::int)",
            (topic, after, size),
        )


def _numbers(states: Iterable[State | str]) -> list[int]:
    return [int(State.of(state)) for state in states]


def _group_members(groups: Iterable[Iterable[str]]) -> tuple[list[str], list[int]]:
    """Return the identifiers of all groups, and for each the place of its group, counted from 0."""
    identifiers: list[str] = []
    places: list[int] = []
    for place, group in enumerate(groups):
        if isinstance(group, str):
            raise InvalidTask(f"a group is a list of identifiers, not the one text {group[:50]!r}")
        members = list(group)
        identifiers += members
        places += [place] * len(members)
    return identifiers, places
