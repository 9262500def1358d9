"""The client: `TaskQueue`, with all verbs of the queue over one connection."""

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain, islice
from typing import Any, Unpack

from airflow_provider_taskq.queue.admin import AdminMixin
from airflow_provider_taskq.queue.connection import all_or_nothing
from airflow_provider_taskq.queue.drains import DrainMixin
from airflow_provider_taskq.queue.encoding import interval_text, json_text, owner_of, task_of, to_int4
from airflow_provider_taskq.queue.errors import InvalidArgument, InvalidTask, UnknownTopic, error_summary, trace_text
from airflow_provider_taskq.queue.inspect import InspectMixin
from airflow_provider_taskq.queue.log import LogMixin
from airflow_provider_taskq.queue.models import (
    Condition,
    Decision,
    Insertion,
    Json,
    NewTask,
    Offered,
    Order,
    Outcome,
    Owner,
    Pushed,
    Result,
    Task,
)
from airflow_provider_taskq.queue.partitions import PartitionMixin
from airflow_provider_taskq.queue.policies import (
    PolicyChanges,
    RetryPolicy,
    TopicPolicy,
    apply_changes,
    parse_changes,
    policy_fields,
)
from airflow_provider_taskq.queue.task_input import TaskChunk, TaskInput, split_into_chunks, to_new_tasks
from airflow_provider_taskq.queue.topic_status import MAX_COUNT, TOPIC_STATUS_QUERY, TopicStatus

FIVE_MINUTES = timedelta(minutes=5)
NO_GRACE = timedelta(0)


class TaskQueue(AdminMixin, PartitionMixin, DrainMixin, InspectMixin, LogMixin):
    """The queue in the database that a `psycopg.Connection` reaches.

    Every verb runs in the caller's transaction and never commits: push inside the transaction that writes your
    business row, complete inside the one that writes your result. A verb that raises changed nothing; as after
    any PostgreSQL error, the transaction then has to be rolled back, or rolled back to a savepoint.
    """

    def create_topic(
        self,
        topic: str,
        policy: TopicPolicy = TopicPolicy(),  # noqa: B008 - frozen
        **changes: Unpack[PolicyChanges],
    ) -> bool:
        """Creates a topic; False, and the topic is left as it is, if it exists.

        `changes` are fields that differ from `policy`: `create_topic("orders", max_attempts=5)`.
        """
        return bool(
            self._value(
                "SELECT taskq.create_topic(%s::text, %s::int, %s::interval, %s::float8, %s::interval, %s::interval,"
                " %s::interval, %s::float8, %s::boolean, %s::text, %s::int, %s::int, %s::interval, %s::boolean)",
                (topic, *map(_stored, policy_fields(apply_changes(policy, changes)).values())),
            )
        )

    def alter_topic(self, topic: str, policy: TopicPolicy | None = None, **changes: Unpack[PolicyChanges]) -> None:
        """Changes a topic's policy; what is already scheduled keeps its time.

        Either `policy` replaces the whole policy, or `changes` name the fields to change, and the others stay as they
        are, also if another transaction changes these at the same time: `alter_topic("orders", max_attempts=5)`.
        The names are the fields of TopicPolicy and of RetryPolicy; `retry=RetryPolicy(...)` changes all of the latter.
        Durations may be texts such as `90s`. UnknownTopic; InvalidArgument for an unknown or a wrong field.
        """
        if (policy is None) == (not changes):
            raise InvalidArgument("alter_topic takes either a policy, or the fields to change such as max_attempts=5")
        altered = parse_changes(changes) if policy is None else policy_fields(policy)
        document = json.dumps({name: _as_text(value) for name, value in altered.items()})
        self._rows("SELECT taskq.alter_topic(%s::text, %s::jsonb)", (topic, document))

    def topics(self) -> list[str]:
        """The names of all topics, in alphabetical order."""
        return [name for (name,) in self._rows("SELECT * FROM taskq.topics()")]

    def policy(self, topic: str) -> TopicPolicy:
        """A topic's policy."""
        row = self._rows(
            "SELECT max_attempts, base, factor, max_delay, horizon, max_elapsed, jitter, probe,"
            " on_expiry, max_crashes, max_payload_bytes, ttl, notify FROM taskq.policy(%s::text)",
            (topic,),
        )[0]
        return TopicPolicy(RetryPolicy(*row[:8]), *row[8:])

    def drop_topic(self, topic: str) -> bool:
        """Removes a topic with all its tasks, held ones too; False where there is none.

        Waits for up to a minute for transactions that push to the topic, hold its tasks or store progress of its
        readers, and for no longer than the session's `lock_timeout`. TaskQueueError, with a session in the way, if they
        do not end. It gives way to a transaction of several verbs that waits for it: none of these ends in a deadlock.

        Instant, on a connection in autocommit, for a topic that has partitions of its own.
        """
        return bool(self._value("SELECT taskq.drop_topic(%s::text, %s::boolean)", (topic, self._alone)))

    def pause_topic(self, topic: str) -> bool:
        """Lets a topic hand out nothing, while it takes pushes and completions; False if it was paused already."""
        return bool(self._value("SELECT taskq.set_paused(%s::text, true)", (topic,)))

    def resume_topic(self, topic: str) -> bool:
        """Lets a paused topic hand out tasks again; False if it was not paused."""
        return bool(self._value("SELECT taskq.set_paused(%s::text, false)", (topic,)))

    def register(self, owner: str, lease: timedelta = FIVE_MINUTES) -> Owner:
        """Registers a name under a new, greater fence, which locks out whoever used the name before.

        Tasks that the name still holds are taken over (`resumed`): they stay ACTIVE under the new fence.
        InvalidArgument for a `lease` that is not more than 0 and at most 3650 days.
        """
        return owner_of(
            self._rows("SELECT * FROM taskq.register(%s::text, %s::interval)", (owner, interval_text(lease)))[0]
        )

    def take_over(self, owner: str, claim: int, lease: timedelta = FIVE_MINUTES) -> Owner:
        """Registers a name under a new, greater fence to continue a claim that another program made under it.

        `claim` is the fence of the registration that claimed the tasks. It stays the key to them: a retry takes
        the tasks over by the same number, which locks out the try before it, and `owner(name, claim)` finds the
        registration that holds them now. LeaseLost if the lease is gone, or the name was registered without this claim.
        InvalidArgument for a `lease` that is not more than 0 and at most 3650 days.
        """
        return owner_of(
            self._rows(
                "SELECT * FROM taskq.take_over(%s::text, %s::bigint, %s::interval)",
                (owner, claim, interval_text(lease)),
            )[0]
        )

    def heartbeat(self, owner: Owner) -> Owner:
        """Extends a lease by its length, a lapsed one too; LeaseLost once it is gone."""
        until = self._value("SELECT taskq.heartbeat(%s::text, %s::bigint)", (owner.name, owner.fence))
        return replace(owner, lease_until=until)

    def owner(self, name: str, claim: int | None = None) -> Owner | None:
        """The owner of that name whose lease is not gone, lapsed or not: how another program finds its fence.

        With `claim`, the fence of a claim, only if the owner still holds that claim: under the same fence, or under a
        later one of `take_over`.
        """
        rows = self._rows("SELECT * FROM taskq.owner(%s::text, %s::bigint)", (name, claim))
        return owner_of(rows[0]) if rows else None

    def owners(self, within: timedelta | None = None) -> list[Owner]:
        """The owners whose lease has not lapsed; `within`: only those that gave a sign of life so recently."""
        return [
            owner_of(row) for row in self._rows("SELECT * FROM taskq.owners(%s::interval)", (interval_text(within),))
        ]

    def release(self, owner: Owner) -> int:
        """Gives back unfinished tasks as READY in their old place, the attempt not counted, and ends the lease.

        Returns how many tasks, 0 where the lease is gone already.
        """
        return int(self._value("SELECT taskq.release(%s::text, %s::bigint)", (owner.name, owner.fence)))

    def expire(self, grace: timedelta = NO_GRACE, *, except_owners: Collection[str] = ()) -> int:
        """Takes every lease that lapsed more than `grace` ago; returns how many tasks were held under them.

        `except_owners`: names of owners whose leases are left alone, such as the caller's own.
        """
        return int(
            self._value("SELECT taskq.expire(%s::interval, %s::text[])", (interval_text(grace), list(except_owners)))
        )

    def held(self, owner: Owner, topic: str | None = None) -> list[Task]:
        """What this owner holds now, in polled order; nothing once its lease is gone."""
        rows = self._rows(
            "SELECT topic, sequence, identifier, payload, reference, attempt, redelivered"
            " FROM taskq.held(%s::text, %s::bigint, %s::text)",
            (owner.name, owner.fence, topic),
        )
        return [task_of(row[0], row[1:]) for row in rows]

    def push(self, topic: str, tasks: Iterable[TaskInput], insertion: Insertion | str = Insertion.APPEND) -> list[Task]:
        """Stores tasks at the end of a topic, all or none, and returns them in input order.

        A task is an identifier, a NewTask, or a dict of the fields of NewTask: `available_at` may be a text in
        ISO 8601 there, `delay` and `ttl` seconds or a text such as 90s.

        Under DELETE a task whose identifier comes again later in the push is not
        stored, and not returned. UnknownTopic; InvalidTask, naming the position of the task, counted from 0.
        """
        insertion, given = Insertion(insertion), list(to_new_tasks(topic, tasks))
        cut = list(split_into_chunks(topic, given))
        sequences: list[int | None] = []
        if len(cut) == 1:
            sequences = self._push_chunk(topic, cut[0], insertion, None)
        elif cut:
            with all_or_nothing(self.conn):
                for chunk in cut:
                    sequences += self._push_chunk(topic, chunk, insertion, _first(sequences))
        if insertion is Insertion.DELETE:  # a later chunk deletes what an earlier one stored
            last = {task.identifier: place for place, task in enumerate(given)}
            sequences = [n if last[given[place].identifier] == place else None for place, n in enumerate(sequences)]
        return [
            Task(sequence, topic, task.identifier, task.payload, task.reference, 0, False)
            for task, sequence in zip(given, sequences, strict=True)
            if sequence is not None
        ]

    def push_stream(
        self, topic: str, tasks: Iterable[TaskInput], insertion: Insertion | str = Insertion.APPEND
    ) -> Pushed:
        """The same as `push` for an iterator of any length, in bounded memory."""
        count, first, last = 0, None, None
        insertion, pieces = Insertion(insertion), split_into_chunks(topic, to_new_tasks(topic, tasks))
        begun = list(islice(pieces, 2))
        with all_or_nothing(self.conn) if len(begun) > 1 else nullcontext():
            for chunk in chain(begun, pieces):
                stored = [n for n in self._push_chunk(topic, chunk, insertion, first) if n is not None]
                count += len(chunk.tasks)
                first = first if first is not None else min(stored, default=None)
                last = max(stored, default=last)
            if (
                insertion is Insertion.DELETE and first is not None and len(begun) > 1
            ):  # a later one may have deleted it
                first = self._value("SELECT taskq.first_pushed(%s::text, %s::bigint)", (topic, first))
        return Pushed(count, first, last)

    def notify(self, topic: str) -> None:
        """Tells watchers that wait on a topic to look at once, rather than at their next look.

        Call it after the commit of what was pushed, outside of any transaction that takes long. Nothing depends on it.
        """
        self._rows("SELECT taskq.notify(%s::text)", (topic,))

    def _push_chunk(self, topic: str, chunk: TaskChunk, insertion: Insertion, since: int | None) -> list[int | None]:
        """The sequences of one chunk's tasks, None for one not stored; `since`: the first of the whole push.

        Arrays travel in binary: psycopg's text format for them costs fifty times as much a value.
        """
        single = chunk.single() if insertion is Insertion.APPEND else None
        if single:
            return [
                self._value(
                    "SELECT taskq.push(%s::text, %s::text, %s::text, %s::text, available_at => %s::timestamptz,"
                    " delay => %s::text::interval, ttl => %s::text::interval, priority => %s::int)",
                    (topic, *single),
                )
            ]
        stored: list[int | None] = self._value(
            "SELECT taskq.push(%s::text, %s::text, %b::text[], %b::text[], %b::text[], %b::boolean[],"
            " %b::timestamptz[], %b::text[]::interval[], %b::text[]::interval[], %b::int[], %s::int, %s::bigint,"
            " %b::int[], %b::text[], %b::text[])",
            (topic, insertion, *chunk.columns(), chunk.offset, since, *chunk.dependencies()),
        )
        return stored

    def offer(
        self,
        topic: str,
        identifier: str,
        payload: Json = None,
        *,
        if_exists: str = "update",
        reference: str | None = None,
        available_at: datetime | None = None,
        delay: timedelta | None = None,
        ttl: timedelta | None = None,
        priority: int = 0,
    ) -> Offered:
        """Stores a task, unless a task of the identifier waits already: then updates or ignores that one.

        A waiting task is READY and not held; scheduled tasks and tasks that wait to be retried are waiting tasks.
        `if_exists="update"` gives the waiting task the payload, reference, ttl, priority and schedule of the offer,
        under the same sequence; `"ignore"` leaves the waiting task as it is. Without `available_at` and `delay` the
        task is due at once; a task that is due already keeps its place. Among the transactions that offer there is at
        most one waiting task per identifier: an offer waits until an open transaction that offered the identifier
        ends. A task that an open poll is claiming counts as held, and the offer creates a task.

        Returns CREATED, UPDATED, or IGNORED if nothing changed, with the sequence. UnknownTopic; InvalidTask;
        InvalidArgument for another `if_exists`; TaskQueueError above READ COMMITTED.
        """
        task = NewTask(identifier, payload, reference, False, available_at, delay, ttl, priority)
        return self.offer_many(topic, [task], if_exists=if_exists)[0]

    def offer_many(self, topic: str, tasks: Iterable[TaskInput], *, if_exists: str = "update") -> list[Offered]:
        """Offers many tasks, all or none, and returns what each offer did, in input order.

        Tasks are identifiers, NewTasks or dicts, as of `push`. If an identifier comes again, the later offer meets the
        task of the earlier one. Two calls never wait for each other in a circle. InvalidTask for a task that is
        suspended or depends on others.
        """
        cut = list(split_into_chunks(topic, to_new_tasks(topic, tasks)))
        for chunk in cut:
            chunk.refuse_beyond_offer()
        offered: list[Offered] = []
        with all_or_nothing(self.conn) if len(cut) > 1 else nullcontext():
            if len(cut) > 1:  # each call locks in order, several calls would not
                identifiers = [identifier for chunk in cut for identifier in chunk.identifiers()]
                self._rows("SELECT taskq.lock_offers(%s::text, %b::text[])", (topic, identifiers))
            for chunk in cut:
                offered += self._offer_chunk(topic, chunk, if_exists)
        return offered

    def drop(self, topic: str, identifier: str) -> bool:
        """Removes what waits under an identifier; False if nothing does. Tasks that are held or have ended stay.

        If all tasks of the identifier were offered, there is at most one. Waits until an open transaction that offered
        the identifier ends. UnknownTopic; TaskQueueError above READ COMMITTED.
        """
        return bool(self._value("SELECT taskq.drop(%s::text, %s::text)", (topic, identifier)))

    def _offer_chunk(self, topic: str, chunk: TaskChunk, if_exists: str) -> list[Offered]:
        identifiers, payloads, references, _, *rest = chunk.columns()
        [(outcomes, sequences)] = self._rows(
            "SELECT outcomes, sequences FROM taskq.offer_many(%s::text, %s::text, %b::text[], %b::text[], %b::text[],"
            " %b::timestamptz[], %b::text[]::interval[], %b::text[]::interval[], %b::int[], %s::int)",
            (topic, if_exists, identifiers, payloads, references, *rest, chunk.offset),
        )
        return [Offered(Outcome(outcome), sequence) for outcome, sequence in zip(outcomes, sequences, strict=True)]

    def poll(
        self,
        topic: str,
        owner: Owner,
        size: int = 1,
        order: Order | str = Order.FIRST_IN_FIRST_OUT,
        condition: Condition | str = Condition.NONE,
    ) -> list[Task]:
        """Takes up to `size` tasks that are READY and due for the owner, and returns them in order.

        Never waits for another's transaction. UnknownTopic; LeaseLost if the lease has lapsed or is gone.
        """
        rows = self._rows(
            "SELECT * FROM taskq.poll(%s::text, %s::text, %s::bigint, %s::int, %s::text, %s::text)",
            (topic, owner.name, owner.fence, to_int4(size), Order(order), Condition(condition)),
        )
        return [task_of(topic, row) for row in rows]

    def poll_batch(self, topic: str, owner: Owner, identifiers: int = 1, size: int = -1) -> dict[str, list[Task]]:
        """Takes whole groups: of up to `identifiers` identifiers the due READY tasks, in order, to be handled together.

        `size`: how many tasks of each group, -1 for all; InvalidArgument below that. Left out is an identifier with
        an ACTIVE task, with one that waits to be retried and is not due, or with a FAILED one.
        """
        groups: dict[str, list[Task]] = {}
        for row in self._rows(
            "SELECT * FROM taskq.poll_batch(%s::text, %s::text, %s::bigint, %s::int, %s::int)",
            (topic, owner.name, owner.fence, to_int4(identifiers), to_int4(size)),
        ):
            task = task_of(topic, row)
            groups.setdefault(task.identifier, []).append(task)
        return groups

    def claim(
        self,
        topic: str,
        owner: Owner,
        size: int,
        order: Order | str = Order.FIRST_IN_FIRST_OUT,
        condition: Condition | str = Condition.NONE,
    ) -> int:
        """Takes tasks as `poll` does, but returns only how many: for an engine that reads them elsewhere."""
        return int(
            self._value(
                "SELECT taskq.claim(%s::text, %s::text, %s::bigint, %s::int, %s::text, %s::text)",
                (topic, owner.name, owner.fence, to_int4(size), Order(order), Condition(condition)),
            )
        )

    def ready(self, topic: str, limit: int = 1, condition: Condition | str = Condition.NONE) -> int:
        """How many tasks could be polled now, counted to `limit`.

        Leaves out what a poll would skip at this moment: tasks and, under a condition, identifiers that an open
        transaction holds. Takes nothing and locks nothing. A paused topic has none.
        """
        return int(
            self._value(
                "SELECT taskq.ready(%s::text, %s::int, %s::text)", (topic, to_int4(limit), Condition(condition))
            )
        )

    def has_unclaimed(self, topic: str, condition: Condition | str = Condition.NONE) -> bool:
        """Whether a task could be polled now, or could be if no other poll were looking at its identifier.

        A poll under a condition holds the identifiers that it looks at until its transaction ends, also those of which
        it takes nothing. So an empty poll and `ready() == 0` do not prove that the topic is empty: ask this before you
        stop, and look again after a pause while it is True.
        """
        return bool(self._value("SELECT taskq.has_unclaimed(%s::text, %s::text)", (topic, Condition(condition))))

    def topic_status(self, topic: str, condition: Condition | str = Condition.NONE) -> TopicStatus:
        """What keeps tasks of a topic from being polled under a condition, in counts up to `topic_status.CAP`.

        Changes nothing. UnknownTopic for a topic that does not exist.
        """
        rows = self._rows(TOPIC_STATUS_QUERY, ([topic], [Condition.of(condition)], MAX_COUNT))
        if not rows:
            raise UnknownTopic(f"topic {topic!r} does not exist; create it with create_topic")
        return TopicStatus(topic, *rows[0][1:])

    def complete(self, owner: Owner, decisions: Mapping[Task | int, Decision | Result | str]) -> None:
        """Carries out decisions on tasks that the owner holds; keys are tasks or their sequences.

        A decision is a Decision, a Result, or the name of a result in any case.

        All or nothing. It works until the lease is gone, lapsed or not; then LeaseLost. NotHeld, naming the
        sequences, for a task that the owner does not hold now.
        """
        if decisions:
            self._rows(
                "SELECT taskq.complete(%s::text, %s::bigint, %b::bigint[], %b::smallint[], %b::text[], %b::text[],"
                " %b::text[]::interval[], %b::text[])",
                (owner.name, owner.fence, *columns(decisions)),
            )

    def exchange(
        self,
        owner: Owner,
        decisions: Mapping[Task | int, Decision | Result | str],
        topic: str,
        size: int = 1,
        order: Order | str = Order.FIRST_IN_FIRST_OUT,
        condition: Condition | str = Condition.NONE,
    ) -> list[Task]:
        """Completes what was done and polls what is next, both or neither: one transaction and one round trip.

        Raises what `complete` and `poll` raise. Where the lease has lapsed, poll refuses: nothing is completed then,
        and `complete` alone still works.
        """
        rows = self._rows(
            "SELECT * FROM taskq.exchange(%s::text, %s::bigint, %b::bigint[], %b::smallint[], %b::text[], %b::text[],"
            " %b::text[]::interval[], %b::text[], %s::text, %s::int, %s::text, %s::text)",
            (owner.name, owner.fence, *columns(decisions), topic, to_int4(size), Order(order), Condition(condition)),
        )
        return [task_of(topic, row) for row in rows]


def _stored(value: Any) -> Any:
    """The value of a field of a policy as an argument of a function of SQL."""
    return interval_text(value) if isinstance(value, timedelta) else value


def _as_text(value: Any) -> str | bool | None:
    """The same in JSON: as a text, as JSON has no infinite numbers."""
    return value if value is None or isinstance(value, bool) else str(_stored(value))


def _first(sequences: list[int | None]) -> int | None:
    """The lowest sequence stored so far."""
    return next((sequence for sequence in sequences if sequence is not None), None)


def columns(decisions: Mapping[Task | int, Decision | Result | str]) -> tuple[list[Any] | None, ...]:
    """The arguments of taskq.complete from p_sequences on."""
    made = _by_sequence(decisions)
    values = list(made.values())
    delays = [interval_text(decision.delay) for decision in values]
    failed = any(decision.error is not None for decision in values)
    return (
        list(made),
        [int(decision.result) for decision in values],
        [_message(sequence, decision) for sequence, decision in made.items()],
        [trace_text(decision.error) for decision in values] if failed else None,
        delays if any(delays) else None,
        [error_summary(decision.error) for decision in values] if failed else None,
    )


def _by_sequence(decisions: Mapping[Task | int, Decision | Result | str]) -> dict[int, Decision]:
    """The decisions by sequence; InvalidTask where one task is named twice."""
    made: dict[int, Decision] = {}
    for key, value in decisions.items():
        sequence = key.sequence if isinstance(key, Task) else key
        if sequence in made:
            raise InvalidTask(f"the task of sequence {sequence} is decided twice in one call")
        made[sequence] = value if isinstance(value, Decision) else Decision(Result.of(value))
    return made


def _message(sequence: int, decision: Decision) -> str | None:
    """A decision's message as JSON text; InvalidTask, naming the task, where it is none."""
    try:
        return json_text(decision.message)
    except ValueError as error:
        raise InvalidTask(f"the message of the decision on sequence {sequence} {error}") from None
