"""Composites on Spark: executors run their steps on batches of the tasks of a partition."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame

from airflow_provider_taskq.queue import Condition, Decision, Insertion, Task, TaskQueueError
from airflow_provider_taskq.queue.encoding import json_text
from airflow_provider_taskq.spark.follow_ups import follow_up
from airflow_provider_taskq.spark.transforms import (
    DECISION_ARROW_SCHEMA,
    DECISION_SCHEMA,
    TASK_COLUMNS,
    FrameFunction,
    Transform,
    as_one_frame,
    blocked_row,
    blocks_identifier,
    decision_values,
    task_from_row,
)
from airflow_provider_taskq.worker.batches import Batch, FollowUp, Release
from airflow_provider_taskq.worker.commit import storable_decision
from airflow_provider_taskq.worker.composite import Composite
from airflow_provider_taskq.worker.handlers import UNDECIDED, decision_on, handle_batch

BATCH_SIZE = 1_000
_UNDECIDED_SECONDS = (UNDECIDED.delay or timedelta()).total_seconds()


def by_composite(composite: Composite, size: int = BATCH_SIZE) -> "CompositeTransform":
    """Return the transform of a composite, whose steps get batches of up to `size` tasks.

    The tasks of one identifier are in one partition. Under a condition, a batch has at most one task of an identifier,
    like a worker's batch. A later batch has the next task, unless the previous one blocks its identifier.

    Raises TaskQueueError if the composite cannot be pickled for the executors.
    """
    if not composite.steps:
        raise TaskQueueError(f"composite {composite.name!r} has no steps")
    if size < 1:
        raise TaskQueueError(f"the size of a batch must be a whole number of at least 1, not {size}")
    try:
        cloudpickle.dumps(composite)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise TaskQueueError(
            f"composite {composite.name!r}: cannot send it to Spark's executors, as a step refers to an object that"
            f" cannot be pickled: {error}"
        ) from error
    return CompositeTransform(composite, size)


def transform_of(given: FrameFunction | Composite) -> Transform:
    """Return a transform as it is, and make one of a composite, or of a function of all tasks as a DataFrame.

    Raises the errors of `by_composite`, and InvalidArgument for a parameter of the function that a drain cannot supply.
    """
    if isinstance(given, Transform):
        return given
    return by_composite(given) if isinstance(given, Composite) else as_one_frame(given)


@dataclass(frozen=True, slots=True)
class CompositeTransform(Transform):
    """A transform that processes batches by the steps of a composite.

    A DataFrame carries decisions, pushes with APPEND and junctions, but no functions. So the transform refuses
    `in_commit`, `after_commit` and other pushes. The steps get no options.
    """

    composite: Composite
    size: int = BATCH_SIZE

    def __call__(self, tasks: DataFrame) -> DataFrame:
        """Return the decisions on these tasks."""
        return tasks.select(*TASK_COLUMNS).mapInArrow(self.decide, DECISION_SCHEMA)

    def decide(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the decisions on a partition, on an executor, and then end the composite's threads."""
        blocked: set[str] = set()
        chunks = (batch.slice(place, self.size) for batch in batches for place in range(0, batch.num_rows, self.size))
        try:
            for chunk in chunks:
                tasks = [task_from_row(values) for values in chunk.to_pylist()]
                left = set(tasks)
                for batch in self._batches(tasks, blocked):
                    rows = self._decide_batch(batch)
                    left.difference_update(batch)
                    yield _record_batch(row for row in rows if row["delay"] != _UNDECIDED_SECONDS)
                    if self.condition is not Condition.NONE:
                        for task, row in zip(batch, rows, strict=True):
                            if blocks_identifier(row, self.condition):
                                blocked.add(task.identifier)
                yield _record_batch(blocked_row(task.sequence) for task in tasks if task in left)
                # Only the last identifier of a chunk may have more tasks in the next one.
                blocked.intersection_update({tasks[-1].identifier})
        finally:
            self.composite.close()

    def _batches(self, tasks: Sequence[Task], blocked: set[str]) -> Iterator[list[Task]]:
        """Yield one batch of all tasks; under a condition, the first task of each identifier, then the second ..."""
        if self.condition is Condition.NONE:
            yield list(tasks)
            return
        waiting: dict[str, deque[Task]] = {}
        for task in tasks:
            waiting.setdefault(task.identifier, deque()).append(task)
        while waiting := {name: rest for name, rest in waiting.items() if rest and name not in blocked}:
            yield [rest.popleft() for rest in waiting.values()]

    def _decide_batch(self, tasks: Sequence[Task]) -> list[dict[str, Any]]:
        batch = Batch(tasks, owner=self.batch.known_owner)
        try:
            decisions = handle_batch(self.composite, batch)
        except Exception as error:  # noqa: BLE001 -- any error is the failure of this batch only
            batch, decisions = Batch(tasks), dict.fromkeys(tasks, decision_on(error))
        displacing = any(each.insertion is not Insertion.APPEND for each in batch.follow_ups)
        if displacing or batch.commit_hooks or batch.after_commit_calls:
            raise TaskQueueError(
                f"composite {self.composite.name!r}: on Spark a composite supports no in_commit, no after_commit, and"
                " no push but APPEND: run the composite in a worker"
            )
        return _decision_rows(decisions, batch.follow_ups, batch.releases)


def _record_batch(rows: Iterable[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=DECISION_ARROW_SCHEMA)


def _decision_rows(
    decisions: Mapping[Task, Decision], follow_ups: Iterable[FollowUp], releases: Iterable[Release]
) -> list[dict[str, Any]]:
    tasks: dict[Task, list[dict[str, Any]]] = {}
    groups: dict[Task, list[dict[str, Any]]] = {}
    for each in follow_ups:
        tasks.setdefault(each.task, []).extend(follow_up(each.topic, new) for new in each.tasks)
    for release in releases:
        lists = [list(group) for group in release.groups]
        groups.setdefault(release.task, []).append(
            {"topic": release.topic, "groups": lists, "junction": release.junction}
        )
    return [
        decision_values(
            task.sequence, storable_decision(decision, json_text), tasks.get(task, ()), groups.get(task, ())
        )
        for task, decision in decisions.items()
    ]
