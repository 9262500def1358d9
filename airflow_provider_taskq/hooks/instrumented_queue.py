"""A queue that counts the tasks of one transaction, for Airflow's metrics and lineage."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

from airflow_provider_taskq import metrics
from airflow_provider_taskq.queue import Decision, Offered, Outcome, Owner, Polled, Pushed, Result, Task, TaskQueue

if TYPE_CHECKING:
    import psycopg

Decisions = Mapping[Task | int, Decision | Result | str]


class InstrumentedQueue(TaskQueue):
    """The queue of one transaction, which counts the tasks that the transaction pushes, polls and completes.

    A completed task counts for its topic if the caller names it by `Task`. It counts without a topic if the caller
    names it by sequence. Call `report_metrics` after the commit, because a rollback undoes the calls that were counted.
    """

    def __init__(self, conn: "psycopg.Connection[Any]") -> None:
        super().__init__(conn)
        self._counts: Counter[tuple[str, str | None, str | None]] = Counter()  # by metric, topic and result
        self._poll_times: list[tuple[str, timedelta]] = []

    @property
    def input_topics(self) -> set[str]:
        """The topics from which tasks were polled or completed."""
        return self._counted_topics(metrics.POLLED, metrics.COMPLETED)

    @property
    def output_topics(self) -> set[str]:
        """The topics to which tasks were pushed."""
        return self._counted_topics(metrics.PUSHED)

    def report_metrics(self) -> None:
        """Send the counters and timings to Airflow."""
        for (name, topic, result), number in self._counts.items():
            metrics.count(name, number, topic=topic, result=result)
        for topic, length in self._poll_times:
            metrics.timing(metrics.POLL_TIME, length, topic=topic)

    # The overrides need no signatures: `TaskQHook.transaction` returns the type TaskQueue, which has them.

    def push(self, topic: str, *args: Any, **kwargs: Any) -> list[Task]:
        """Push tasks, and count them."""
        pushed = super().push(topic, *args, **kwargs)
        self._count(metrics.PUSHED, len(pushed), topic=topic)
        return pushed

    def push_stream(self, topic: str, *args: Any, **kwargs: Any) -> Pushed:
        """Push tasks from an iterator, and count them."""
        pushed = super().push_stream(topic, *args, **kwargs)
        self._count(metrics.PUSHED, pushed.count, topic=topic)
        return pushed

    def offer_many(self, topic: str, *args: Any, **kwargs: Any) -> list[Offered]:
        """Offer tasks, and count those that were created."""
        offered = super().offer_many(topic, *args, **kwargs)
        self._count(metrics.PUSHED, sum(each.outcome is Outcome.CREATED for each in offered), topic=topic)
        return offered

    def poll(self, topic: str, *args: Any, **kwargs: Any) -> Polled:
        """Poll tasks, and count them."""
        with self._timed(topic):
            polled = super().poll(topic, *args, **kwargs)
        metrics.polled(topic, polled, self._count)
        return polled

    def poll_batch(self, topic: str, *args: Any, **kwargs: Any) -> dict[str, list[Task]]:
        """Poll groups, and count their tasks."""
        with self._timed(topic):
            groups = super().poll_batch(topic, *args, **kwargs)
        for tasks in groups.values():
            metrics.polled(topic, tasks, self._count)
        return groups

    def claim(self, topic: str, *args: Any, **kwargs: Any) -> int:
        """Claim tasks, and count them."""
        with self._timed(topic):
            claimed = super().claim(topic, *args, **kwargs)
        self._count(metrics.POLLED, claimed, topic=topic)
        return claimed

    def complete(self, owner: Owner, decisions: Decisions) -> None:
        """Complete tasks, and count the decisions."""
        super().complete(owner, decisions)
        self._count_completed(decisions)

    def exchange(self, owner: Owner, decisions: Decisions, topic: str, *args: Any, **kwargs: Any) -> Polled:
        """Complete tasks and poll the next ones, and count both."""
        with self._timed(topic):
            polled = super().exchange(owner, decisions, topic, *args, **kwargs)
        self._count_completed(decisions)
        metrics.polled(topic, polled, self._count)
        return polled

    @contextmanager
    def _timed(self, topic: str) -> Iterator[None]:
        began = monotonic()
        yield
        self._poll_times.append((topic, timedelta(seconds=monotonic() - began)))

    def _count(self, name: str, number: int, *, topic: str | None = None, result: str | None = None) -> None:
        self._counts[name, topic, result] += number

    def _count_completed(self, decisions: Decisions) -> None:
        for task, decision in decisions.items():
            result = decision.result if isinstance(decision, Decision) else Result.of(decision)
            topic = task.topic if isinstance(task, Task) else None
            self._count(metrics.COMPLETED, 1, topic=topic, result=result.name)

    def _counted_topics(self, *names: str) -> set[str]:
        return {topic for (name, topic, _), number in self._counts.items() if topic and number and name in names}
