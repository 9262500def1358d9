"""Composites on Spark: executors run their steps on batches of the tasks of a partition."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle

from airflow_provider_taskq.queue import Decision, Insertion, NewTask, Task, TaskQueueError
from airflow_provider_taskq.queue.arguments import to_integer
from airflow_provider_taskq.queue.encoding import json_text
from airflow_provider_taskq.spark.transforms import (
    FrameFunction,
    JunctionGroups,
    TaskOutcome,
    TaskwiseTransform,
    Transform,
    as_one_frame,
    outcome_row,
)
from airflow_provider_taskq.worker.batches import Batch, FollowUp, Release
from airflow_provider_taskq.worker.commit import storable_decision
from airflow_provider_taskq.worker.composite import Composite
from airflow_provider_taskq.worker.handlers import decision_on, handle_batch

BATCH_SIZE = 1_000


def by_composite(composite: Composite, size: int = BATCH_SIZE) -> "CompositeTransform":
    """Return the transform of a composite, whose steps get batches of up to `size` tasks.

    The tasks of one identifier are in one partition. Under a condition, a batch has at most one task of an identifier,
    like a worker's batch. A later batch has the next task, unless the previous one blocks its identifier.

    Raises TaskQueueError if the composite cannot be pickled for the executors.
    """
    if not composite.steps:
        raise TaskQueueError(f"composite {composite.name!r} has no steps")
    to_integer(size, "size", 1)
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
class CompositeTransform(TaskwiseTransform):
    """A transform that processes batches by the steps of a composite.

    A DataFrame carries decisions, pushes with APPEND and junctions, but no functions. So the transform refuses
    `in_commit`, `after_commit` and other pushes. The steps get no options.
    """

    composite: Composite
    size: int = BATCH_SIZE

    def decide(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the decisions on a partition, on an executor, and then end the composite's threads."""
        chunks = (batch.slice(place, self.size) for batch in batches for place in range(0, batch.num_rows, self.size))
        try:
            yield from TaskwiseTransform.decide(self, chunks)
        finally:
            self.composite.close()

    def decide_tasks(self, tasks: Sequence[Task]) -> list[dict[str, Any] | None]:
        """Run the steps on these tasks as one batch."""
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
        return _rows(decisions, batch.follow_ups, batch.releases)


def _rows(
    decisions: Mapping[Task, Decision], follow_ups: Iterable[FollowUp], releases: Iterable[Release]
) -> list[dict[str, Any] | None]:
    pushed: dict[Task, dict[str, list[NewTask]]] = defaultdict(lambda: defaultdict(list))
    for each in follow_ups:
        pushed[each.task][each.topic] += each.tasks
    released: dict[Task, list[JunctionGroups]] = defaultdict(list)
    for release in releases:
        released[release.task].append(JunctionGroups(release.topic, release.groups, release.junction))
    return [
        outcome_row(task.sequence, TaskOutcome(storable_decision(decision, json_text), pushed[task], released[task]))
        for task, decision in decisions.items()
    ]
