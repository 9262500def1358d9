"""A queue that counts the tasks of one transaction, for Airflow's metrics and lineage."""

import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from functools import wraps
from itertools import chain
from operator import attrgetter
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar, cast

from airflow_provider_taskq import metrics
from airflow_provider_taskq.queue import Decision, Outcome, Result, Task, TaskQueue
from airflow_provider_taskq.queue.metrics import COMPLETED, POLL_TIME, POLLED, PUSHED, Metric, record_polled

if TYPE_CHECKING:
    import psycopg

Verb = TypeVar("Verb", bound=Callable[..., Any])


def _counted(verb: Verb, metric: Metric | None = None, number: Callable[[Any], int] | None = None) -> Verb:
    """Override a verb of TaskQueue to count the decisions that it gets, and the tasks that it pushes or polls.

    :param number: how many tasks a result of the verb stands for; without it, a result of POLLED has the tasks.
    """
    signature = inspect.signature(verb)

    @wraps(verb)
    def call(queue: "InstrumentedQueue", *args: Any, **kwargs: Any) -> Any:
        began = monotonic()
        found = verb(queue, *args, **kwargs)
        seconds = monotonic() - began
        given = signature.bind(queue, *args, **kwargs).arguments
        if metric is POLLED:
            queue.record(POLL_TIME, seconds, topic=given["topic"])
        for task, decision in given.get("decisions", {}).items():
            result = decision.result if isinstance(decision, Decision) else Result.of(decision)
            queue.record(COMPLETED, 1, topic=task.topic if isinstance(task, Task) else None, result=result.name)
        if metric is not None and number is not None:
            queue.record(metric, number(found), topic=given["topic"])
        elif metric is POLLED:
            tasks = list(chain(*found.values())) if isinstance(found, dict) else found
            record_polled(queue.record, tasks, topic=given["topic"])
        return found

    return cast("Verb", call)


class InstrumentedQueue(TaskQueue):
    """The queue of one transaction, which counts the tasks that the transaction pushes, polls and completes.

    A completed task counts for its topic if the caller names it by `Task`. It counts without a topic if the caller
    names it by sequence. Call `report_metrics` after the commit, because a rollback undoes the calls that were counted.
    """

    def __init__(self, conn: "psycopg.Connection[Any]") -> None:
        super().__init__(conn)
        self._counts: Counter[tuple[Metric, tuple[tuple[str, str | None], ...]]] = Counter()
        self._times: list[tuple[Metric, float, Mapping[str, str | None]]] = []

    def record(self, metric: Metric, value: float, /, **labels: str | None) -> None:
        """Keep a value until `report_metrics`: see `Recorder`."""
        if metric.kind == "counter":
            self._counts[metric, tuple(labels.items())] += int(value)
        else:
            self._times.append((metric, value, labels))

    def report_metrics(self) -> None:
        """Send the counters and timings to Airflow."""
        for (metric, labels), number in self._counts.items():
            metrics.record(metric, number, **dict(labels))
        for timing, seconds, tags in self._times:
            metrics.record(timing, seconds, **tags)

    @property
    def input_topics(self) -> set[str]:
        """The topics from which tasks were polled or completed."""
        return self._counted_topics(POLLED, COMPLETED)

    @property
    def output_topics(self) -> set[str]:
        """The topics to which tasks were pushed."""
        return self._counted_topics(PUSHED)

    push = _counted(TaskQueue.push, PUSHED, len)
    push_stream = _counted(TaskQueue.push_stream, PUSHED, attrgetter("count"))
    offer_many = _counted(TaskQueue.offer_many, PUSHED, lambda found: sum(o.outcome is Outcome.CREATED for o in found))
    poll = _counted(TaskQueue.poll, POLLED)
    poll_batch = _counted(TaskQueue.poll_batch, POLLED)
    claim = _counted(TaskQueue.claim, POLLED, int)
    exchange = _counted(TaskQueue.exchange, POLLED)
    complete = _counted(TaskQueue.complete)

    def _counted_topics(self, *names: Metric) -> set[str]:
        found = ((metric, dict(labels).get("topic"), number) for (metric, labels), number in self._counts.items())
        return {topic for metric, topic, number in found if topic and number and metric in names}
