"""Removes what nobody needs any more, from a DAG."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_taskq import metrics
from airflow_provider_taskq.operators.base import TaskQOperator
from airflow_provider_taskq.operators.rendered import Span, choice, name, now, number, span
from airflow_provider_taskq.queue import State, TaskQueue, UnknownTopic

if TYPE_CHECKING:
    from airflow.sdk import Context


class TaskQPurgeOperator(TaskQOperator):
    """Removes ended tasks for good, batch by batch, and owners and junctures that are forgotten on request.

    Each batch is a transaction of its own, so that a large purge holds back neither vacuum nor anybody's locks, and one
    that is stopped has done what it has done. Tasks that are ACTIVE, READY or EXPIRED are spared unless their state is
    named; what another transaction holds stays for the next purge.

    Returns `{"purged", "owners", "junctures"}`, the numbers of what was removed.

    :param topic: the topic's name; None for all topics, which goes with `older_than` only (templated).
    :param older_than: how long ago tasks were pushed at least, a timedelta or seconds (templated).
    :param state: only tasks of this state (templated).
    :param from_: the lowest sequence (templated).
    :param to: the highest sequence (templated).
    :param batch: how many tasks a transaction removes at most.
    :param owners_older_than: removes owners without a sign of life for so long, who hold nothing and whom no task
        tells of (templated).
    :param junctures_older_than: forgets what junctures released that long ago; a sensor that still waits for one after
        that would wait for suspended tasks anew (templated).
    :param taskq_conn_id: the Airflow connection (templated).
    """

    template_fields: Sequence[str] = (
        *("topic", "older_than", "state", "from_", "to"),
        *("owners_older_than", "junctures_older_than", "taskq_conn_id"),
    )

    def __init__(
        self,
        *,
        topic: str | None = None,
        older_than: Span | None = None,
        state: State | str | None = None,
        from_: int | str | None = None,
        to: int | str | None = None,
        batch: int = 10_000,
        owners_older_than: Span | None = None,
        junctures_older_than: Span | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.older_than = older_than
        self.state = name(state)
        self.from_ = from_
        self.to = to
        self.batch = batch
        self.owners_older_than = owners_older_than
        self.junctures_older_than = junctures_older_than
        chosen = any(value is not None for value in (older_than, state, from_, to))
        if topic is None and any(value is not None for value in (state, from_, to)):
            raise ValueError("state, from_ and to choose among the tasks of one topic: name it")
        if topic is not None and not chosen:
            raise ValueError("say which tasks of the topic to purge: by older_than, state, from_ or to")
        if not chosen and owners_older_than is None and junctures_older_than is None:
            raise ValueError("nothing to purge: give older_than, owners_older_than or junctures_older_than")
        if batch < 1:
            raise ValueError(f"batch is at least 1, not {batch}")

    def execute(self, context: "Context") -> dict[str, Any]:  # noqa: ARG002  Airflow's signature
        """Purges, and says how many."""
        purged = owners = junctures = 0
        with self.hook.get_conn() as connection:
            connection.autocommit = True
            queue = TaskQueue(connection)
            purged = self._purge_tasks(queue)
            if self.owners_older_than is not None:
                owners = queue.purge_owners(span(self.owners_older_than))
            if self.junctures_older_than is not None:
                junctures = queue.purge_group_releases(span(self.junctures_older_than))
        self.log.info("Purged %d tasks, %d owners and %d junctures.", purged, owners, junctures)
        return {"purged": purged, "owners": owners, "junctures": junctures}

    def _purge_tasks(self, queue: TaskQueue) -> int:
        """Purges the topic, or every topic there is."""
        if self.topic is None and self.older_than is None:
            return 0
        to = number(self.to)
        if self.older_than is not None:
            last = queue.resolve(now(queue.conn) - span(self.older_than), preceding=True)
            if last is None:
                return 0
            to = last if to is None else min(to, last)
        if self.topic is not None:
            return self._purge_topic(queue, self.topic, to)
        return sum(self._purge_if_there(queue, topic, to) for topic in queue.topics())

    def _purge_if_there(self, queue: TaskQueue, topic: str, to: int | None) -> int:
        """The same for a topic that may have been dropped since it was listed."""
        try:
            return self._purge_topic(queue, topic, to)
        except UnknownTopic:
            return 0

    def _purge_topic(self, queue: TaskQueue, topic: str, to: int | None) -> int:
        """Purges batches until one is not full."""
        state, purged = choice(State, self.state), 0
        while True:
            removed = queue.purge(topic, number(self.from_) or 0, to, state, size=self.batch)
            metrics.count(metrics.PURGED, removed, topic=topic)
            purged += removed
            if removed < self.batch:
                break
        if purged:
            self.log.info("Purged %d tasks of topic %s.", purged, topic)
        return purged
