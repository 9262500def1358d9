"""The client: `TaskQueue`, with topics, owners, poll and complete; its mixins have the other verbs."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, LiteralString, Unpack

from psycopg.rows import dict_row

from airflow_provider_taskq.queue.admin import AdminMixin
from airflow_provider_taskq.queue.arguments import DurationLike
from airflow_provider_taskq.queue.drains import DrainMixin
from airflow_provider_taskq.queue.encoding import JsonEncoder, interval_text, model_row, polled_row, task_row
from airflow_provider_taskq.queue.errors import (
    InvalidArgument,
    InvalidTask,
    error_summary,
    trace_text,
)
from airflow_provider_taskq.queue.inspect import InspectMixin
from airflow_provider_taskq.queue.log import LogMixin
from airflow_provider_taskq.queue.models import (
    Condition,
    Decision,
    MaintenanceResult,
    Order,
    Owner,
    Polled,
    Result,
    Task,
)
from airflow_provider_taskq.queue.policies import (
    PolicyChanges,
    TopicPolicy,
    apply_changes,
    parse_changes,
    policy_fields,
)
from airflow_provider_taskq.queue.push import PushMixin
from airflow_provider_taskq.queue.waits import WaitMixin

_FIVE_MINUTES = timedelta(minutes=5)
_ZERO = timedelta(0)
_OWNER = model_row(Owner)


class TaskQueue(PushMixin, AdminMixin, DrainMixin, InspectMixin, LogMixin, WaitMixin):
    """The queue in the database that a `psycopg.Connection` reaches.

    Every verb runs in the caller's transaction and never commits: push inside the transaction that writes your
    business row, complete inside the one that writes your result. A verb that raises changed nothing. As after any
    PostgreSQL error, the transaction then has to be rolled back, or rolled back to a savepoint.

    Every error is a TaskQueueError, or the psycopg error if the queue has nothing to add. A verb that names a topic
    raises UnknownTopic if the topic does not exist. Enumerations may be given by name in any case.

        with psycopg.connect(dsn) as conn:
            TaskQueue(conn).push("orders", [NewTask("order-17", {"total": 12})])

    :param json_default: converts an object in a payload or a message that JSON does not have, such as a datetime: a
        function as that of `json.dumps`, for example `str`. Without it, the function that psycopg's `set_json_dumps`
        has set for the connection encodes payloads and messages.
    """

    # Topics

    def create_topic(
        self,
        topic: str,
        policy: TopicPolicy = TopicPolicy(),  # noqa: B008 - frozen
        own_tables: bool = False,
        **changes: Unpack[PolicyChanges],
    ) -> bool:
        """Create a topic. Return False, and leave the topic as it is, if it exists.

        :param own_tables: keep the topic's tasks in tables of its own, from its creation to its drop.
        :param changes: fields that differ from `policy`, as in `create_topic("orders", max_attempts=5)`.
        :raises InvalidArgument: for an unknown field or a value out of range.
        """
        return self._flag(
            "SELECT taskq.create_topic(%s::text, %s::int, %s::interval, %s::float8, %s::interval, %s::interval,"
            " %s::interval, %s::float8, %s::boolean, %s::text, %s::int, %s::int, %s::interval, %s::boolean,"
            " %s::interval, %s::interval, %s::boolean)",
            (topic, *policy_fields(apply_changes(policy, changes)).values(), own_tables),
        )

    def alter_topic(self, topic: str, policy: TopicPolicy | None = None, **changes: Unpack[PolicyChanges]) -> None:
        """Change a topic's policy: all of it by `policy`, or single fields by `changes`. Scheduled retries stay.

        Fields that `changes` do not name keep the values that concurrent transactions give them.

        :param changes: fields of TopicPolicy and of RetryPolicy, as in `alter_topic("orders", max_attempts=5)`.
            `retry=RetryPolicy(...)` changes all fields of the latter. Durations may be texts such as `90s`.
        :raises InvalidArgument: for both or neither of `policy` and `changes`, an unknown field, a value out of range.
        """
        if (policy is None) == (not changes):
            raise InvalidArgument("alter_topic takes either a policy, or the fields to change such as max_attempts=5")
        altered = parse_changes(changes) if policy is None else policy_fields(policy)
        document = json.dumps({name: _json_value(value) for name, value in altered.items()})
        self._rows("SELECT taskq.alter_topic(%s::text, %s::jsonb)", (topic, document))

    def topics(self) -> list[str]:
        """Return the names of all topics, in alphabetical order."""
        return [name for (name,) in self._rows("SELECT * FROM taskq.topics()")]

    def policy(self, topic: str) -> TopicPolicy:
        """Return a topic's policy."""
        rows = self._fetch(
            dict_row,
            "SELECT max_attempts, base, factor, max_delay, horizon, max_elapsed, jitter, probe,"
            " on_expiry, max_crashes, max_payload_bytes, ttl, notify, keep_succeeded, keep_failed"
            " FROM taskq.policy(%s::text)",
            (topic,),
        )
        # Another program may have stored a negative duration, which no policy has.
        stored = {name: max(value, _ZERO) if isinstance(value, timedelta) else value for name, value in rows[0].items()}
        return apply_changes(TopicPolicy(), stored)

    def drop_topic(self, topic: str) -> bool:
        """Remove a topic with all its tasks, including held ones. Return False if there is no such topic.

        The call waits up to a minute, and no longer than the session's `lock_timeout`, for transactions that push to
        the topic, hold its tasks or store the progress of its consumer groups. A transaction of several verbs that
        waits for the drop goes first, so none ends in a deadlock.

        The tables of a topic with tables of its own are dropped, which takes as long for a million tasks as for one.
        The call waits for all transactions that use tasks of any topic, and keeps all others out until its transaction
        ends: commit it at once.

        :raises TaskQueueError: if these transactions do not end in time.
        """
        return self._flag("SELECT taskq.drop_topic(%s::text)", (topic,))

    def pause_topic(self, topic: str) -> bool:
        """Pause a topic: it takes pushes and completions, but hands out no tasks. Return False if it was paused."""
        return self._flag("SELECT taskq.set_paused(%s::text, true)", (topic,))

    def resume_topic(self, topic: str) -> bool:
        """Let a paused topic hand out tasks again. Return False if it was not paused."""
        return self._flag("SELECT taskq.set_paused(%s::text, false)", (topic,))

    # Owners and leases

    def register(self, owner: str, lease: DurationLike = _FIVE_MINUTES, *, resume: bool = True) -> Owner:
        """Register a name under a new, greater fence, which locks out the previous registration of the name.

        Tasks that the name still holds are taken over (`resumed`): they stay ACTIVE under the new fence.

        :param lease: how long the owner keeps its tasks without a heartbeat; more than 0, at most 3650 days.
        :param resume: False if the process that held these tasks has died: they have had a crash, as by `expire`, and
            the new registration holds none.
        :raises InvalidArgument: for another lease.
        :raises TaskQueueError: if a transaction that has used the name stays open for a minute.
        """
        return self._fetch(
            _OWNER,
            "SELECT * FROM taskq.register(%s::text, %s::interval, %s::boolean)",
            (owner, lease, resume),
        )[0]

    def take_over(self, owner: str, claim: int, lease: DurationLike = _FIVE_MINUTES) -> Owner:
        """Register a name under a new, greater fence to continue a claim that another program made under the name.

        `claim` stays the key to the tasks: a retry takes them over by the same number, which locks out the attempt
        before it, and `owner(name, claim)` finds the registration that holds them now.

        :param claim: the fence of the registration that claimed the tasks.
        :param lease: as in `register`.
        :raises LeaseLost: if the lease is gone, or the name was registered without this claim.
        """
        return self._fetch(
            _OWNER,
            "SELECT * FROM taskq.register(%s::text, %s::interval, true, %s::bigint)",
            (owner, lease, claim),
        )[0]

    def heartbeat(self, owner: Owner) -> Owner:
        """Extend a lease, also a lapsed one, by its length from now.

        :raises LeaseLost: if the lease is gone: expired, released, or replaced by a later registration.
        """
        until = self._value("SELECT taskq.heartbeat(%s::text, %s::bigint)", (owner.name, owner.fence))
        return replace(owner, lease_until=until)

    def draw_fence(self, owner: Owner) -> int:
        """Draw a number for a system outside of the database, which then refuses smaller numbers.

        It is greater than all fences before. An owner draws it after it has claimed a task: then it is greater than the
        number of each earlier owner of the task. `owner.fence` is not, because an earlier owner may have registered
        later. `poll` and `exchange` draw a number with their tasks.

        :raises LeaseLost: if the lease is gone.
        """
        return self._number("SELECT taskq.draw_fence(%s::text, %s::bigint)", (owner.name, owner.fence))

    def owner(self, name: str, claim: int | None = None) -> Owner | None:
        """Return the owner of a name whose lease is not gone, lapsed or not.

        :param claim: the fence of a claim. The owner is returned only if it still holds that claim: under the same
            fence, or under a later one of `take_over`.
        """
        found = self._fetch(_OWNER, "SELECT * FROM taskq.owner(%s::text, %s::bigint)", (name, claim))
        return found[0] if found else None

    def owners(self, within: DurationLike | None = None) -> list[Owner]:
        """Return the owners whose lease has not lapsed.

        :param within: only those whose last sign of life is no older than this.
        """
        return self._fetch(_OWNER, "SELECT * FROM taskq.owners(%s::interval)", (within,))

    def release(self, owner: Owner, *, crashed: bool = False) -> int:
        """Give back an owner's unfinished tasks and end its lease. Return the number of tasks; 0 if the lease is gone.

        The tasks are READY in their old place, and the attempt is not counted.

        :param crashed: whether a process died that worked on the tasks: they have had a crash, as by `expire`.
        """
        return self._number(
            "SELECT taskq.release(%s::text, %s::bigint, %s::boolean)", (owner.name, owner.fence, crashed)
        )

    def max_claim(self, owner: Owner) -> int | None:
        """Return the most tasks that an owner may claim together, because it holds tasks that have had a crash.

        Return None if it holds no such task.
        """
        most: int | None = self._value("SELECT taskq.max_claim(%s::text, %s::bigint)", (owner.name, owner.fence))
        return most

    def expire(
        self, grace: DurationLike = _ZERO, *, except_owners: Collection[str] = (), topic: str | None = None
    ) -> int:
        """End the leases that have lapsed. Return how many tasks their owners held.

        :param grace: only leases that lapsed longer ago than this.
        :param except_owners: names of owners whose leases are left alone, such as the caller's own.
        :param topic: only leases of owners that hold tasks of this topic.
        """
        return self._number(
            "SELECT taskq.expire(%s::interval, %s::text[], %s::text)",
            (grace, list(except_owners), topic),
        )

    def maintain(self, *, except_owners: Collection[str] = ()) -> MaintenanceResult:
        """Keep the queue healthy: expire lapsed leases, and remove tasks older than `keep_succeeded` or `keep_failed`.

        Workers, drains and the waits of Airflow's triggerer call this method, so a program needs no call of its own.
        Each call is short and waits for no other session. After a run over all topics, no call of any program removes
        tasks for a minute. Commit each call, and call again soon while `more` of the result is True.

        :param except_owners: names of owners whose leases are left alone, such as the caller's own.
        :raises TaskQueueError: above READ COMMITTED.
        """
        return self._fetch(
            model_row(MaintenanceResult),
            "SELECT expired, purged, more FROM taskq.maintain(%s::text[])",
            (list(except_owners),),
        )[0]

    def held(self, owner: Owner, topic: str | None = None) -> list[Task]:
        """Return the tasks that an owner holds now, in polled order; none once its lease is gone."""
        return self._fetch(
            model_row(Task),
            "SELECT sequence, topic, identifier, payload, reference, attempt, redelivered"
            " FROM taskq.held(%s::text, %s::bigint, %s::text)",
            (owner.name, owner.fence, topic),
        )

    # Poll

    def poll(
        self,
        topic: str,
        owner: Owner,
        size: int = 1,
        order: Order | str = Order.FIRST_IN_FIRST_OUT,
        condition: Condition | str = Condition.NONE,
    ) -> Polled:
        """Claim up to `size` READY and due tasks for an owner, and return them in order, with the fence of the poll.

        A poll never waits for another transaction. A `size` below 1 claims nothing. A poll that finds nothing takes the
        tasks of its topic back whose leases have lapsed, as `expire` does.

        :raises LeaseLost: if the lease has lapsed or is gone.
        """
        return self._polled(
            topic,
            owner,
            "SELECT (SELECT taskq.draw_fence(%s::text, %s::bigint)), t.*"
            " FROM taskq.poll(%s::text, %s::text, %s::bigint, %s::int, %s::text, %s::text) t",
            (topic, owner.name, owner.fence, size, Order(order), Condition(condition)),
        )

    def poll_batch(self, topic: str, owner: Owner, identifiers: int = 1, size: int = -1) -> dict[str, list[Task]]:
        """Claim whole groups: the due READY tasks of up to `identifiers` identifiers, each group in polled order.

        In a group, retries come first, by sequence, so that no task overtakes one. The poll leaves out an identifier
        with an ACTIVE task, with a task whose retry is not due, or with a FAILED task.

        :param size: the most tasks of each group; -1 for all.
        :raises InvalidArgument: for a `size` below -1.
        :raises LeaseLost: if the lease has lapsed or is gone.
        """
        groups: dict[str, list[Task]] = {}
        for task in self._fetch(
            task_row(topic),
            "SELECT * FROM taskq.poll_batch(%s::text, %s::text, %s::bigint, %s::int, %s::int)",
            (topic, owner.name, owner.fence, identifiers, size),
        ):
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
        """Claim tasks like `poll`, but return only the number of tasks.

        An engine that reads the tasks by `held` needs no more.

        :raises LeaseLost: if the lease has lapsed or is gone.
        """
        return self._number(
            "SELECT taskq.claim(%s::text, %s::text, %s::bigint, %s::int, %s::text, %s::text)",
            (topic, owner.name, owner.fence, size, Order(order), Condition(condition)),
        )

    def ready(self, topic: str, limit: int = 1, condition: Condition | str = Condition.NONE) -> int:
        """Count the tasks that a poll could claim now, up to `limit`. Change and lock nothing.

        The count leaves out what a poll would skip at this moment: tasks and, under a condition, identifiers that an
        open transaction holds. The count is 0 for a paused topic.
        """
        return self._number("SELECT taskq.ready(%s::text, %s::int, %s::text)", (topic, limit, Condition(condition)))

    def has_unclaimed(self, topic: str, condition: Condition | str = Condition.NONE) -> bool:
        """Return whether a poll could claim a task now, or could if no other poll were examining the task's identifier.

        A poll under a condition holds the identifiers that it examines until its transaction ends, also those from
        which it claims nothing. So an empty poll and `ready() == 0` do not prove that the topic is empty. Call this
        method before you stop, and poll again after a pause while it returns True.
        """
        return self._flag("SELECT taskq.ready(%s::text, 1, %s::text, true) > 0", (topic, Condition(condition)))

    # Complete

    def complete(self, owner: Owner, decisions: Mapping[Task | int, Decision | Result | str]) -> None:
        """Carry out decisions on tasks that an owner holds, all or none.

        A lapsed lease still completes, until an expiry ends the lease.

        :param decisions: by task or sequence, a Decision, a Result, or the name of a result. A decision on a Task of a
            poll is for the attempt of that poll only. A decision on a sequence is for any attempt.
        :raises LeaseLost: if the lease is gone.
        :raises NotHeld: for tasks that the owner does not hold now; the message has their sequences.
        :raises InvalidTask: for a task that is named twice, or a message that is not JSON.
        """
        if decisions:
            self._rows(
                "SELECT taskq.complete(%s::text, %s::bigint, %b::bigint[], %b::smallint[], %b::text[], %b::text[],"
                " %b::text[]::interval[], %b::text[], %b::int[])",
                (owner.name, owner.fence, *self._decision_columns(decisions), _attempts(decisions)),
            )

    def exchange(
        self,
        owner: Owner,
        decisions: Mapping[Task | int, Decision | Result | str],
        topic: str,
        size: int = 1,
        order: Order | str = Order.FIRST_IN_FIRST_OUT,
        condition: Condition | str = Condition.NONE,
    ) -> Polled:
        """Complete tasks and poll the next ones, both or neither, in one round trip.

        If the lease has lapsed, the call raises LeaseLost and completes nothing; `complete` alone still works then. The
        call raises the other errors of `complete` and `poll` too.
        """
        return self._polled(
            topic,
            owner,
            "SELECT (SELECT taskq.draw_fence(%s::text, %s::bigint)), t.*"
            " FROM taskq.exchange(%s::text, %s::bigint, %b::bigint[], %b::smallint[], %b::text[], %b::text[],"
            " %b::text[]::interval[], %b::text[], %s::text, %s::int, %s::text, %s::text, %b::int[]) t",
            (
                *(owner.name, owner.fence, *self._decision_columns(decisions)),
                *(topic, size, Order(order), Condition(condition), _attempts(decisions)),
            ),
        )

    def _polled(self, topic: str, owner: Owner, call: LiteralString, arguments: Sequence[object]) -> Polled:
        """Fetch the tasks that a call has claimed, and the fence that it has drawn.

        The server runs the function in FROM to its end. Then, for the first row only, it runs the subquery that draws.
        """
        polled = Polled()
        polled.extend(self._fetch(polled_row(topic, polled), call, (owner.name, owner.fence, *arguments)))
        return polled

    def _decision_columns(
        self, decisions: Mapping[Task | int, Decision | Result | str]
    ) -> tuple[list[Any] | None, ...]:
        """Return the array arguments of taskq.complete; a column without values is None."""
        by_sequence: dict[int, Decision] = {}
        for key, value in decisions.items():
            sequence = key.sequence if isinstance(key, Task) else key
            if sequence in by_sequence:
                raise InvalidTask(f"the task of sequence {sequence} is decided twice in one call")
            by_sequence[sequence] = value if isinstance(value, Decision) else Decision(Result.of(value))
        values = list(by_sequence.values())
        delays = [interval_text(decision.delay) for decision in values]
        encode = self.json_encoder()
        messages = [_message_text(sequence, decision, encode) for sequence, decision in by_sequence.items()]
        has_errors = any(decision.error is not None for decision in values)
        return (
            list(by_sequence),
            [int(decision.result) for decision in values],
            messages if any(messages) else None,
            [trace_text(decision.error) for decision in values] if has_errors else None,
            delays if any(delays) else None,
            [error_summary(decision.error) for decision in values] if has_errors else None,
        )


def _json_value(value: Any) -> str | bool | None:
    # Numbers travel as text: JSON has no infinite ones.
    if value is None or isinstance(value, bool):
        return value
    return interval_text(value) if isinstance(value, timedelta) else str(value)


def _attempts(decisions: Mapping[Task | int, Any]) -> list[int | None] | None:
    """Return the attempts that the decisions are for; None for any attempt."""
    # A Task just pushed has attempt 0, and a TaskInfo was read and not claimed.
    attempts = [key.attempt or None if type(key) is Task else None for key in decisions]
    return attempts if any(attempts) else None


def _message_text(sequence: int, decision: Decision, encode: JsonEncoder) -> str | None:
    try:
        return encode(decision.message)
    except ValueError as error:
        raise InvalidTask(f"the message of the decision on sequence {sequence} {error}") from None
