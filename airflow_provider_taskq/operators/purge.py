"""The operator that deletes ended tasks, and owners."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_taskq import metrics
from airflow_provider_taskq.operators.base import TaskQBaseOperator, database_now
from airflow_provider_taskq.parameters import enum_name, parse_duration, parse_enum, parse_int
from airflow_provider_taskq.queue import State, TaskQueue, UnknownTopic
from airflow_provider_taskq.queue.arguments import DurationLike, to_integer
from airflow_provider_taskq.queue.metrics import PURGED

if TYPE_CHECKING:
    from airflow.sdk import Context


class TaskQPurgeOperator(TaskQBaseOperator):
    """Deletes ended tasks in batches, and on request also old owners.

    Each batch is a transaction of its own. So a large purge does not hold back vacuum, holds locks only for a short
    time, and keeps its progress if it is killed. The operator spares tasks that are ACTIVE, READY or EXPIRED unless
    `state` names their state. Tasks that another transaction has locked stay for the next purge.

    Returns `{"purged", "owners"}`, the number of each that was deleted.

    :param topic: the topic's name; None for all topics, only together with `older_than` (templated).
    :param older_than: purges tasks that were pushed at least this long ago, a timedelta or seconds (templated).
    :param state: only tasks in this state (templated).
    :param from_: the lowest sequence (templated).
    :param to: the highest sequence (templated).
    :param batch: the most tasks in one transaction.
    :param owners_older_than: deletes owners without a heartbeat for this long that hold no task and that no task
        refers to, and the records of groups that a TaskQJunctureSensor released this long ago. A sensor that still
        waits then waits for suspended tasks again (templated).
    """

    template_fields: Sequence[str] = (
        *("topic", "older_than", "state", "from_", "to"),
        *("owners_older_than", "taskq_conn_id"),
    )

    def __init__(
        self,
        *,
        topic: str | None = None,
        older_than: DurationLike | None = None,
        state: State | str | None = None,
        from_: int | str | None = None,
        to: int | str | None = None,
        batch: int = 10_000,
        owners_older_than: DurationLike | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.older_than = older_than
        self.state = enum_name(state)
        self.from_ = from_
        self.to = to
        self.batch = batch
        self.owners_older_than = owners_older_than
        chosen = any(value is not None for value in (older_than, state, from_, to))
        if topic is None and any(value is not None for value in (state, from_, to)):
            raise ValueError("state, from_ and to select tasks of one topic, so they need a topic")
        if topic is not None and not chosen:
            raise ValueError(f"no tasks of topic {topic!r} are selected: give older_than, state, from_ or to")
        if not chosen and owners_older_than is None:
            raise ValueError("nothing to purge: give older_than or owners_older_than")
        to_integer(batch, "batch", 1)

    def execute(self, context: "Context") -> dict[str, Any]:  # noqa: ARG002  Airflow's signature
        """Delete, and return the number of deleted tasks and owners."""
        owners = 0
        with self.hook.get_conn() as connection:
            connection.autocommit = True
            queue = TaskQueue(connection)
            purged = self._purge_tasks(queue)
            if self.owners_older_than is not None:
                owners = queue.purge_owners(self.owners_older_than)
        self.log.info("Purge finished: tasks=%d owners=%d", purged, owners)
        return {"purged": purged, "owners": owners}

    def _purge_tasks(self, queue: TaskQueue) -> int:
        if self.topic is None and self.older_than is None:
            return 0
        to = parse_int("to", self.to)
        if self.older_than is not None:
            age = parse_duration("older_than", self.older_than)
            last = queue.resolve(database_now(queue.conn) - age, preceding=True)
            if last is None:
                return 0
            to = last if to is None else min(to, last)
        if self.topic is not None:
            return self._purge_topic(queue, self.topic, to)
        purged = 0
        for topic in queue.topics():
            try:
                purged += self._purge_topic(queue, topic, to)
            except UnknownTopic:  # dropped since the list was read
                continue
        return purged

    def _purge_topic(self, queue: TaskQueue, topic: str, to: int | None) -> int:
        state, purged = parse_enum(State, self.state), 0
        while True:
            removed = queue.purge(topic, parse_int("from_", self.from_) or 0, to, state, size=self.batch)
            metrics.record(PURGED, removed, topic=topic)
            purged += removed
            if removed < self.batch:
                break
        if purged:
            self.log.info("Purged tasks: topic=%s count=%d", topic, purged)
        return purged
