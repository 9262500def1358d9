"""Administration of tasks: revive, reassign, purge, locks, ticks, workers, and the audit trail."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timedelta

from airflow_provider_taskq.queue.connection import FunctionCaller, all_or_nothing
from airflow_provider_taskq.queue.encoding import interval_text, state_number, to_int4
from airflow_provider_taskq.queue.errors import InvalidTask
from airflow_provider_taskq.queue.models import Json, Junction, NewTask, Owner, Result, Revival, State, Task
from airflow_provider_taskq.queue.reports import AuditEntry
from airflow_provider_taskq.queue.task_input import TaskChunk, split_into_chunks

LARGEST = 2**31 - 1
NOTHING = timedelta(0)


class AdminMixin(FunctionCaller):
    """Verbs for operators: revive, reassign, junctions, purge, locks, ticks, workers, single tasks, actions."""

    def pause_task(self, topic: str, sequence: int) -> bool:
        """Keeps a READY task from being handed out until it is resumed; False where it was paused already."""
        return bool(self._value("SELECT taskq.pause_task(%s::text, %s::bigint)", (topic, sequence)))

    def resume_task(self, topic: str, sequence: int) -> bool:
        """Lets a paused task go on: a retry now, any other in its old place; False where it was not paused."""
        return bool(self._value("SELECT taskq.resume_task(%s::text, %s::bigint)", (topic, sequence)))

    def set_due(self, topic: str, sequence: int, moment: datetime | None) -> None:
        """Sets when a READY task is due; None gives it its old place back."""
        self._rows("SELECT taskq.set_due(%s::text, %s::bigint, %s::timestamptz)", (topic, sequence, moment))

    def set_attempts(self, topic: str, sequence: int, attempts: int) -> None:
        """Sets how many failed attempts of a READY task count; InvalidTask where none would be left."""
        self._rows("SELECT taskq.set_attempts(%s::text, %s::bigint, %s::int)", (topic, sequence, attempts))

    def run_now(self, topic: str, sequences: Iterable[int]) -> int:
        """Makes READY tasks due now that are due later or paused; returns how many. All or none: InvalidState.

        Dependencies, the probe and the pause of the topic still keep a task.
        """
        return int(self._value("SELECT taskq.run_now(%s::text, %b::bigint[])", (topic, list(sequences))))

    def set_priority(self, topic: str, sequences: Iterable[int], priority: int) -> int:
        """Sets the priority of READY tasks, -100 to 100, higher first; returns how many changed. All or none."""
        call = "SELECT taskq.set_priority(%s::text, %b::bigint[], %s::int)"
        return int(self._value(call, (topic, list(sequences), priority)))

    def cancel(self, topic: str, sequences: Iterable[int]) -> int:
        """Ends READY tasks as FILTERED without running them; returns how many. All or none; `revive` takes it back."""
        return int(self._value("SELECT taskq.cancel(%s::text, %b::bigint[])", (topic, list(sequences))))

    def purge_past_ttl(self, topic: str, size: int = LARGEST) -> int:
        """Removes tasks with an error that have expired; returns how many.

        These are FAILED tasks that have outlived their time to live, and READY tasks that have also outlived the
        `horizon` of the retry policy. Until then, and without a horizon, a READY task has retries left and stays. A
        task without a time to live never expires. `size`: the most tasks of each state.
        """
        return int(self._value("SELECT taskq.purge_past_ttl(%s::text, %s::int)", (topic, to_int4(size))))

    def release_tasks(self, owner: Owner, tasks: Iterable[Task | int]) -> int:
        """Gives some of an owner's tasks back: READY in their old place, the attempt not counted; returns how many.

        NotHeld, and nothing changed, where the owner does not hold one of them.
        """
        sequences = [task if isinstance(task, int) else task.sequence for task in tasks]
        call = "SELECT taskq.release_tasks(%s::text, %s::bigint, %b::bigint[])"
        return int(self._value(call, (owner.name, owner.fence, sequences)))

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
        """Starts ended tasks anew, and returns for each sequence the one that goes on in its stead.

        RESET makes the tasks themselves READY in their old place. The others mark them RECREATED, and then push a
        copy of each by that insertion, in order of sequence.

        Either those of a state, from `from_` to `to`, the `size` lowest; those that another transaction holds are
        left out. Or those named by `sequences`, all or none: InvalidState for one that has not ended or is unknown.
        """
        rows = self._rows(
            "SELECT * FROM taskq.revive(%s::text, %s::text, %b::bigint[], %s::int, %s::bigint, %s::bigint, %s::bigint)",
            (topic, Revival.of(revival), _named(sequences), state_number(state), from_, to, size),
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
        """Overrides the result of ended tasks, and returns of how many. Their output stays.

        Which tasks is said as for `revive`. Those of a state that have this result already are not counted.
        """
        return int(
            self._value(
                "SELECT taskq.reassign(%s::text, %s::int, %b::bigint[], %s::int, %s::bigint, %s::bigint)",
                (topic, int(Result.of(result)), _named(sequences), state_number(state), from_, to),
            )
        )

    def junction(
        self, topic: str, groups: Iterable[Iterable[str]], junction: Junction | str = Junction.SINGULAR
    ) -> set[str]:
        """Releases groups of identifiers: their SUSPENDED tasks start anew. Returns the identifiers of those tasks.

        A group is released when each of its identifiers has a SUSPENDED task (SINGULAR), or a task in any state but
        REDUNDANT (ETERNAL). Each group stands on its own, judged by the states before the call. Never waits: a group
        with a suspended task that another transaction holds is left for a later call.
        """
        return set(
            self._value(
                "SELECT taskq.junction(%s::text, %b::text[], %b::int[], %s::text)",
                (topic, *members(groups), Junction(junction)),
            )
        )

    def release_groups_once(
        self, name: str, topic: str, groups: Iterable[Iterable[str]], junction: Junction | str = Junction.SINGULAR
    ) -> list[int]:
        """Releases groups as `junction` does, each once under this name; returns the places of those still waited for.

        For somebody who waits until all have been released: it remembers what it has released, whoever asks again under
        the name, so that the answer is the same after a crash. A group is known by its identifiers.
        """
        return list(
            self._value(
                "SELECT taskq.release_groups_once(%s::text, %s::text, %b::text[], %b::int[], %s::text)",
                (name, topic, *members(groups), Junction(junction)),
            )
        )

    def purge_group_releases(self, older_than: timedelta) -> int:
        """Forgets what `juncture` released that long ago, and returns how many groups those were."""
        return int(self._value("SELECT taskq.purge_group_releases(%s::text::interval)", (interval_text(older_than),)))

    def purge(
        self,
        topic: str,
        from_: int = 0,
        to: int | None = None,
        state: State | str | None = None,
        *,
        size: int | None = None,
    ) -> int:
        """Removes tasks from `from_` to `to`, both included, of one state; returns how many.

        Without a state, all that are FAILED to REDUNDANT: ACTIVE, READY and EXPIRED ones are spared unless named.
        `size`: at most so many, the lowest sequences first, so that a job may commit between its calls. Never waits:
        a task that another transaction holds stays.
        """
        return int(
            self._value(
                "SELECT taskq.purge(%s::text, %s::bigint, %s::bigint, %s::int, %s::bigint)",
                (topic, from_, to, state_number(state), size),
            )
        )

    def purge_all(self, topic: str) -> int:
        """Removes every task of a topic, ACTIVE ones too; returns how many.

        Never waits: a task that another transaction is polling or completing right now stays. Instant, on a
        connection in autocommit, for a topic that has partitions of its own.
        """
        return int(self._value("SELECT taskq.purge_all(%s::text, %s::boolean)", (topic, self._alone)))

    def purge_owners(self, older_than: timedelta) -> int:
        """Removes owners that gave no sign of life for so long, and whose lease has lapsed or is gone.

        Returns how many.

        Spares those that hold tasks, and those that a stored task was held by last, so that its `owner` stays known.
        """
        return int(self._value("SELECT taskq.purge_owners(%s::interval)", (interval_text(older_than),)))

    def lock(self, name: str, by: str, at_most: timedelta, at_least: timedelta = NOTHING) -> bool:
        """Takes the lock of that name for `by`, or extends it where `by` has it; False where somebody else has it.

        It is held for `at_most` from now unless it is given back, which it is not before `at_least` from now. To
        others it is taken as soon as this returns, though the transaction is still open; so too if it is to roll back.
        `at_most`: at most 3650 days; else InvalidArgument.
        """
        return bool(
            self._value(
                "SELECT taskq.lock(%s::text, %s::text, %s::interval, %s::interval)",
                (name, by, interval_text(at_most), interval_text(at_least)),
            )
        )

    def unlock(self, name: str, by: str) -> bool:
        """Gives the lock of that name back; False where `by` does not have it, or has it no longer.

        Before `at_least` is over the lock is nobody's until then.
        """
        return bool(self._value("SELECT taskq.unlock(%s::text, %s::text)", (name, by)))

    def install_ticks(
        self, topic: str, prefix: str, config_hash: str, ticks: Iterable[tuple[datetime, NewTask | Json]]
    ) -> int:
        """Adds the ticks that are missing and returns how many; a tick that exists is never changed.

        A tick is a nominal time with a payload, due at that time, or with a NewTask, whose identifier does not
        count and whose own due time does. Its task has the identifier `prefix/config_hash/time`, the time in UTC
        as 20261121T103000.000000Z. Before that, ticks of the same prefix with another hash are removed: those
        that wait, not those that are held or have ended. Schedulers that install ticks of one prefix wait for
        each other's transactions. Needs READ COMMITTED.
        """
        given = [(moment, _task(prefix, what)) for moment, what in ticks]
        for place, (moment, _) in enumerate(given):
            if getattr(moment, "tzinfo", None) is None:
                raise InvalidTask(f"topic {topic!r}, task at position {place}: its nominal time has no time zone")
        moments = [moment for moment, _ in given]
        cut = list(split_into_chunks(topic, (task for _, task in given))) or [TaskChunk(topic, 0, [], [])]
        with all_or_nothing(self.conn) if len(cut) > 1 else nullcontext():
            return sum(self._install_chunk(topic, prefix, config_hash, chunk, moments) for chunk in cut)

    def uninstall_ticks(self, topic: str, prefix: str, config_hash: str) -> int:
        """Removes the ticks of this prefix and hash that wait, not those held or ended; returns how many."""
        return int(
            self._value("SELECT taskq.uninstall_ticks(%s::text, %s::text, %s::text)", (topic, prefix, config_hash))
        )

    def _install_chunk(
        self, topic: str, prefix: str, config_hash: str, chunk: TaskChunk, moments: list[datetime]
    ) -> int:
        """Installs the ticks of one chunk, of all of which these are the moments."""
        columns = chunk.columns()[1:]  # the identifiers are made by the function
        return int(
            self._value(
                "SELECT taskq.install_ticks(%s::text, %s::text, %s::text, %b::timestamptz[], %b::text[], %b::text[],"
                " %b::boolean[], %b::timestamptz[], %b::text[]::interval[], %b::text[]::interval[], %b::int[],"
                " %s::int, %b::int[], %b::text[], %b::text[])",
                (
                    *(topic, prefix, config_hash, moments[chunk.offset : chunk.offset + len(chunk.tasks)]),
                    *(*columns, chunk.offset, *chunk.dependencies()),
                ),
            )
        )

    def activate_worker(self, name: str) -> bool | None:
        """Says that workers of that name are to work, and tells them at the commit.

        Returns whether they were to before; None where nobody had said.
        """
        return self._set_worker(name, active=True)

    def deactivate_worker(self, name: str) -> bool | None:
        """Says that workers of that name are to stop; returns as `activate_worker` does."""
        return self._set_worker(name, active=False)

    def is_worker_active(self, name: str) -> bool | None:
        """Whether workers of that name are to work; None where nobody has said."""
        said: bool | None = self._value("SELECT taskq.is_worker_active(%s::text)", (name,))
        return said

    def workers(self) -> dict[str, bool]:
        """Whether they are to work, by name: all workers of whom that was said."""
        return {row[0]: row[1] for row in self._rows("SELECT name, active FROM taskq.workers()")}

    def forget_worker(self, name: str) -> bool:
        """Forgets what was said of workers of that name; False where nothing was."""
        return bool(self._value("SELECT taskq.forget_worker(%s::text)", (name,)))

    def _set_worker(self, name: str, *, active: bool) -> bool | None:
        said: bool | None = self._value("SELECT taskq.set_worker_active(%s::text, %s::boolean)", (name, active))
        return said

    def record_action(self, action: str, topic: str | None, what: str, count: int) -> None:
        """Enters what this transaction does in the trail, under the name given to `acting`; refused without one."""
        self._rows("SELECT taskq.record_action(%s::text, %s::text, %s::text, %s::bigint)", (action, topic, what, count))

    def audit_trail(self, topic: str | None = None, *, after: int | None = None, size: int = 50) -> list[AuditEntry]:
        """The trail, of a topic or of all, the newest first, before a place in it."""
        rows = self._rows(
            "SELECT * FROM taskq.audit_trail(%s::text, %s::bigint, %s::int)", (topic, after, to_int4(size))
        )
        return [AuditEntry(*row) for row in rows]

    def lock_tasks(self, topic: str, sequences: Sequence[int], states: Iterable[State | str]) -> list[int]:
        """Those of these tasks that are in one of these ended states and nobody else's, locked from now on."""
        held: list[int] = self._value(
            "SELECT taskq.lock_tasks(%s::text, %b::bigint[], %b::int[])", (topic, list(sequences), _numbers(states))
        )
        return held

    def purge_sequences(self, topic: str, sequences: Sequence[int], states: Iterable[State | str]) -> int:
        """Removes those of these tasks that are in one of these states, never held ones; how many. Never waits."""
        return int(
            self._value(
                "SELECT taskq.purge_sequences(%s::text, %b::bigint[], %b::int[])",
                (topic, list(sequences), _numbers(states)),
            )
        )

    def count_lapsed(self, grace: timedelta) -> tuple[int, int]:
        """How many leases `expire(grace)` would take, and how many tasks under them, both up to a thousand."""
        owners, tasks = self._rows("SELECT * FROM taskq.count_lapsed(%s::interval)", (interval_text(grace),))[0]
        return owners, tasks


def _named(sequences: Sequence[int] | None) -> list[int] | None:
    """The sequences as a list, which crosses as an array."""
    return None if sequences is None else list(sequences)


def members(groups: Iterable[Iterable[str]]) -> tuple[list[str], list[int]]:
    """The identifiers of all groups, and the place of the group that each is in, counted from 0."""
    identifiers: list[str] = []
    numbers: list[int] = []
    for number, group in enumerate(groups):
        if isinstance(group, str):
            raise InvalidTask(f"a group is a list of identifiers, not the one text {group[:50]!r}")
        given = list(group)
        identifiers += given
        numbers += [number] * len(given)
    return identifiers, numbers


def _task(prefix: str, what: NewTask | Json) -> NewTask:
    """What a tick pushes: its identifier is known to the function only, so that the prefix stands for it here."""
    return replace(what, identifier=prefix) if isinstance(what, NewTask) else NewTask(prefix, what)


def _numbers(states: Iterable[State | str]) -> list[int]:
    """States as they cross the wire."""
    return [int(State.of(state)) for state in states]
