"""What a transaction of the hook did, by topic: told to Airflow's lineage and metrics once it is committed."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

from airflow_provider_taskq import metrics
from airflow_provider_taskq.queue import (
    Condition,
    Decision,
    Insertion,
    Offered,
    Order,
    Outcome,
    Owner,
    Pushed,
    Result,
    Task,
    TaskQueue,
)
from airflow_provider_taskq.queue.task_input import TaskInput

if TYPE_CHECKING:
    import psycopg

    from airflow_provider_taskq.hooks.taskq import TaskQHook


class ObservedQueue(TaskQueue):
    """The queue of one transaction, which counts what went into topics and what was taken out of them.

    What was completed is counted by topic where tasks are named by `Task`; a bare sequence does not say of which topic.
    """

    def __init__(self, conn: "psycopg.Connection[Any]") -> None:
        super().__init__(conn)
        self.pushed: Counter[str] = Counter()
        self.polled: Counter[str] = Counter()
        self.redelivered: Counter[str] = Counter()
        self.retried: Counter[str] = Counter()
        self.completed: Counter[tuple[str | None, Result]] = Counter()
        self.polls: list[tuple[str, timedelta]] = []

    def push(self, topic: str, tasks: Iterable[TaskInput], insertion: Insertion | str = Insertion.APPEND) -> list[Task]:
        """As TaskQueue does."""
        pushed = super().push(topic, tasks, insertion)
        self.pushed[topic] += len(pushed)
        return pushed

    def push_stream(
        self, topic: str, tasks: Iterable[TaskInput], insertion: Insertion | str = Insertion.APPEND
    ) -> Pushed:
        """As TaskQueue does."""
        pushed = super().push_stream(topic, tasks, insertion)
        self.pushed[topic] += pushed.count
        return pushed

    def offer_many(self, topic: str, tasks: Iterable[TaskInput], *, if_exists: str = "update") -> list[Offered]:
        """As TaskQueue does. A task that was updated was counted when it was created."""
        offered = super().offer_many(topic, tasks, if_exists=if_exists)
        self.pushed[topic] += sum(each.outcome is Outcome.CREATED for each in offered)
        return offered

    def poll(
        self,
        topic: str,
        owner: Owner,
        size: int = 1,
        order: Order | str = Order.FIRST_IN_FIRST_OUT,
        condition: Condition | str = Condition.NONE,
    ) -> list[Task]:
        """As TaskQueue does."""
        with self._timed(topic):
            polled = super().poll(topic, owner, size, order, condition)
        self._count_polled(topic, polled)
        return polled

    def poll_batch(self, topic: str, owner: Owner, identifiers: int = 1, size: int = -1) -> dict[str, list[Task]]:
        """As TaskQueue does."""
        with self._timed(topic):
            groups = super().poll_batch(topic, owner, identifiers, size)
        for tasks in groups.values():
            self._count_polled(topic, tasks)
        return groups

    def claim(
        self,
        topic: str,
        owner: Owner,
        size: int,
        order: Order | str = Order.FIRST_IN_FIRST_OUT,
        condition: Condition | str = Condition.NONE,
    ) -> int:
        """As TaskQueue does."""
        with self._timed(topic):
            claimed = super().claim(topic, owner, size, order, condition)
        self.polled[topic] += claimed
        return claimed

    def complete(self, owner: Owner, decisions: Mapping[Task | int, Decision | Result | str]) -> None:
        """As TaskQueue does."""
        super().complete(owner, decisions)
        self._count_completed(decisions)

    def exchange(
        self,
        owner: Owner,
        decisions: Mapping[Task | int, Decision | Result | str],
        topic: str,
        size: int = 1,
        order: Order | str = Order.FIRST_IN_FIRST_OUT,
        condition: Condition | str = Condition.NONE,
    ) -> list[Task]:
        """As TaskQueue does."""
        with self._timed(topic):
            polled = super().exchange(owner, decisions, topic, size, order, condition)
        self._count_completed(decisions)
        self._count_polled(topic, polled)
        return polled

    @contextmanager
    def _timed(self, topic: str) -> Iterator[None]:
        """Keeps how long one call took that takes tasks; one that fails is not kept."""
        began = monotonic()
        yield
        self.polls.append((topic, timedelta(seconds=monotonic() - began)))

    def _count_polled(self, topic: str, tasks: Sequence[Task]) -> None:
        """Counts tasks taken, and those among them that an owner before had lost, or that had failed before."""
        self.polled[topic] += len(tasks)
        self.redelivered[topic] += sum(task.redelivered for task in tasks)
        self.retried[topic] += sum(task.attempt > 1 for task in tasks)

    def _count_completed(self, decisions: Mapping[Task | int, Decision | Result | str]) -> None:
        """Counts decisions by topic and result."""
        for task, decision in decisions.items():
            result = decision.result if isinstance(decision, Decision) else Result.of(decision)
            self.completed[task.topic if isinstance(task, Task) else None, result] += 1

    def report(self, hook: "TaskQHook") -> None:
        """Tells what was done: after the commit, as what is rolled back never was."""
        counted = {
            metrics.PUSHED: self.pushed,
            metrics.POLLED: self.polled,
            metrics.REDELIVERED: self.redelivered,
            metrics.RETRIED: self.retried,
        }
        for name, numbers in counted.items():
            for topic, number in numbers.items():
                metrics.count(name, number, topic=topic)
        for topic, length in self.polls:
            metrics.timing(metrics.POLL_TIME, length, topic=topic)
        for (completed_of, result), number in self.completed.items():
            metrics.count(metrics.COMPLETED, number, topic=completed_of, result=result.name)
        taken = {topic for topic, _ in self.completed if topic is not None} | {t for t, n in self.polled.items() if n}
        hook.report_lineage(inputs=taken, outputs=[topic for topic, number in self.pushed.items() if number])
