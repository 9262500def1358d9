"""A composite as a transform: its steps run on executors, on batches of the tasks of a partition."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame

from airflow_provider_taskq.queue import Condition, Decision, Task, TaskQueueError
from airflow_provider_taskq.spark.batches import ARROW, DECISIONS
from airflow_provider_taskq.spark.commit import Company, company_of
from airflow_provider_taskq.spark.follow_ups import follow_up
from airflow_provider_taskq.spark.transforms import OF_A_TASK, stops, task_of, values_of
from airflow_provider_taskq.worker.batches import Batch, FollowUp, Release
from airflow_provider_taskq.worker.composite import Composite
from airflow_provider_taskq.worker.filters import readable
from airflow_provider_taskq.worker.handlers import decision_on, handle_batch

BATCH = 1_000  # tasks that go through the steps together, unless said otherwise

Carry = Callable[[Company], object]  # takes what a batch leaves to the driver


def by_composite(composite: Composite, size: int = BATCH) -> "ByComposite":
    """A transform from a composite, in batches of up to `size` tasks; TaskQueueError where it cannot get to executors.

    The tasks of one identifier are in one partition. Under a condition a batch has one task of an identifier at most,
    as a worker's batch has, and the next is in a later batch, if the one before it ended well.
    """
    if not composite.steps:
        raise TaskQueueError(f"composite {composite.name!r} has no steps")
    if size < 1:
        raise TaskQueueError(f"the size of a batch must be a whole number from 1, not {size}")
    try:
        cloudpickle.dumps(composite)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise TaskQueueError(
            f"composite {composite.name!r} cannot be sent to Spark's executors, as a step, or what it refers to, does"
            f" not pickle: {error}"
        ) from error
    return ByComposite(composite, size)


@dataclass(frozen=True, slots=True)
class ByComposite:
    """A transform that works batches through the steps of a composite.

    A drain whose transform this is runs the steps in its writer (`CompositeWriter`), and calls `decided`. As a part of
    another transform it is a function of DataFrames. A DataFrame carries decisions, pushes with APPEND and junctions,
    and no functions: `in_commit`, `after_commit` and other pushes are then refused.
    """

    composite: Composite
    size: int = BATCH
    condition: Condition = Condition.NONE

    def under(self, condition: Condition) -> "ByComposite":
        """The same, for tasks that come in turn under a condition."""
        return replace(self, condition=condition)

    def __call__(self, tasks: DataFrame) -> DataFrame:
        """The decisions on these tasks."""

        def decided(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from self.decided(batches, _refuse)

        return tasks.select(*OF_A_TASK).mapInArrow(decided, DECISIONS)

    def decided(self, batches: Iterator[pa.RecordBatch], carry: Carry) -> Iterator[pa.RecordBatch]:
        """The decisions on a partition, on an executor; the composite's threads end with it.

        `carry` is called with what a batch leaves to the driver, before its decisions are yielded.
        """
        stopped: set[str] = set()
        try:
            for tasks in _chunks(batches, self.size):
                for wave in self._waves(tasks, stopped):
                    rows = self._rows(wave, carry)
                    yield pa.RecordBatch.from_pylist(rows, schema=ARROW)
                    if self.condition is not Condition.NONE:
                        ended = zip(wave, rows, strict=True)
                        stopped.update(task.identifier for task, row in ended if stops(row, self.condition))
                stopped.intersection_update({tasks[-1].identifier})  # the one that may go on in the next chunk
        finally:
            self.composite.close()

    def _waves(self, tasks: Sequence[Task], stopped: set[str]) -> Iterator[list[Task]]:
        """The batches of a chunk: all at once, or under a condition the first of each identifier, then the second."""
        if self.condition is Condition.NONE:
            yield list(tasks)
            return
        lanes: dict[str, deque[Task]] = {}
        for task in tasks:
            lanes.setdefault(task.identifier, deque()).append(task)
        while lanes := {name: lane for name, lane in lanes.items() if lane and name not in stopped}:
            yield [lane.popleft() for lane in lanes.values()]

    def _rows(self, tasks: Sequence[Task], carry: Carry) -> list[dict[str, Any]]:
        """What is decided on one batch; what only the driver can do is given to `carry`."""
        work = Batch(tasks)
        handler = readable(self.composite, work)
        try:
            decisions = handle_batch(handler, work)
        except Exception as error:  # noqa: BLE001 -- whatever it is, it is the failure of this batch and of no other
            work, decisions = Batch(tasks), dict.fromkeys(tasks, decision_on(error))
        company = company_of(self.composite.name, work, decisions, self.condition)
        follow_ups, releases = ([], []) if company.pushes else (work.follow_ups, work.releases)
        if not company.is_empty:
            carry(company)
        return _with_follow_ups(decisions, follow_ups, releases)


def _refuse(company: Company) -> None:
    """Refuses what a DataFrame of decisions cannot carry."""
    raise TaskQueueError(
        f"composite {company.composite!r} is only a part of the drain's transform, so it has no in_commit, no"
        " after_commit, and no push but APPEND: pass the composite itself to drain()"
    )


def _with_follow_ups(
    decisions: Mapping[Task, Decision], follow_ups: Iterable[FollowUp], releases: Iterable[Release]
) -> list[dict[str, Any]]:
    """Decisions as rows, each with what follows it."""
    tasks: dict[Task, list[dict[str, Any]]] = {}
    groups: dict[Task, list[dict[str, Any]]] = {}
    for each in follow_ups:
        tasks.setdefault(each.task, []).extend(follow_up(each.topic, new) for new in each.tasks)
    for release in releases:
        listed = [list(group) for group in release.groups]
        groups.setdefault(release.task, []).append(
            {"topic": release.topic, "groups": listed, "junction": release.junction}
        )
    return [
        values_of(task.sequence, decision, tasks.get(task, ()), groups.get(task, ()))
        for task, decision in decisions.items()
    ]


def _chunks(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[list[Task]]:
    """The tasks of a partition, so many at a time."""
    for batch in batches:
        for place in range(0, batch.num_rows, size):
            yield [task_of(values) for values in batch.slice(place, size).to_pylist()]
