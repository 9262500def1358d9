"""How a partition of tasks becomes batches of a composite on an executor: by size, and under a condition in turns."""

import json
import threading
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pytest

from airflow_provider_taskq.queue import Condition, Result, Task, TaskQueueError
from airflow_provider_taskq.spark.commit import DriverActions
from airflow_provider_taskq.spark.composite import CompositeTransform, by_composite
from airflow_provider_taskq.worker.composite import Composite

FAILURE, SUSPENSION, FILTER, SUCCESS = Result
PLAIN = Condition.SINGULAR_BY_IDENTIFIER
UNTIL = Condition.SINGULAR_BY_IDENTIFIER_SUSPEND_UNTIL_SUCCESS


class Noting:
    """A step that notes its batches, and does to each task what its payload says."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def __call__(self, tasks: Sequence[Task]) -> Mapping[Task, Result]:
        self.batches.append([task.sequence for task in tasks])
        return {task: Result[str(task.payload)] for task in tasks}


def decided(transform: CompositeTransform, *identifiers: str, batch: int = 100) -> list[int]:
    """The sequences that got a decision, of a partition with these identifiers, each perhaps with a result."""
    rows = [
        {
            "sequence": number,
            "topic": "work",
            "identifier": given.partition(" ")[0],
            "payload": json.dumps(given.partition(" ")[2] or "SUCCESS"),
            "reference": None,
            "attempt": 1,
            "redelivered": False,
        }
        for number, given in enumerate(identifiers)
    ]
    batches = [pa.RecordBatch.from_pylist(rows[place : place + batch]) for place in range(0, len(rows), batch)]
    return [
        row["sequence"] for made in transform.decide(iter(batches), DriverActions.pickled) for row in made.to_pylist()
    ]


@pytest.fixture
def noting() -> Noting:
    return Noting()


def transform(noting: Noting, size: int, condition: Condition = Condition.NONE) -> CompositeTransform:
    return CompositeTransform(Composite("noting").with_batch(noting), size).with_condition(condition)


def test_batches_are_no_larger_than_said(noting: Noting) -> None:
    assert decided(transform(noting, 2), *"abcde") == [0, 1, 2, 3, 4]
    assert noting.batches == [[0, 1], [2, 3], [4]]


def test_under_a_condition_the_first_of_each_identifier_is_a_batch_then_the_second(noting: Noting) -> None:
    assert decided(transform(noting, 10, PLAIN), "a", "a", "a", "b", "c", "c") == [0, 3, 4, 1, 5, 2]
    assert noting.batches == [[0, 3, 4], [1, 5], [2]]


def test_behind_what_did_not_end_well_no_task_of_the_identifier_is_touched(noting: Noting) -> None:
    given = ("a", "a FAILURE", "a", "b SUSPENSION", "b", "c FILTER", "c")
    assert sorted(decided(transform(noting, 10, PLAIN), *given)) == [0, 1, 3, 4, 5, 6]
    assert sorted(decided(transform(noting, 10, UNTIL), *given)) == [0, 1, 3, 5, 6]


@pytest.mark.parametrize("batch", [1, 2, 100], ids=lambda size: f"arrow batches of {size}")
def test_an_identifier_that_stopped_stays_so_in_the_next_chunk(noting: Noting, batch: int) -> None:
    assert decided(transform(noting, 2, PLAIN), "a FAILURE", "a", "a", "a", "b", "b", batch=batch) == [0, 4, 5]


def test_the_threads_of_a_composite_end_with_the_partition(noting: Noting) -> None:
    before = set(threading.enumerate())
    both = Composite("both").with_batch(noting, name="a").with_batch(noting, name="b")
    assert decided(CompositeTransform(both, 2), *"abcd") == [0, 1, 2, 3]
    new = set(threading.enumerate()) - before
    for thread in new:
        thread.join(30)
    assert not any(thread.is_alive() for thread in new)


def test_a_batch_that_fails_as_a_whole_is_failed_and_the_next_one_is_not() -> None:
    def foreign(tasks: Sequence[Task]) -> Mapping[Task, Result]:
        own = dict.fromkeys(tasks, SUCCESS)
        return own | {Task(9, "work", "x", None, None, 1, False): SUCCESS} if tasks[0].sequence == 0 else own

    failing = CompositeTransform(Composite("foreign").with_batch(foreign), 2)
    rows = pa.Table.from_batches(failing.decide(iter([_batch(3)]), DriverActions.pickled)).to_pylist()
    assert [row["result"] for row in rows] == ["FAILURE", "FAILURE", "SUCCESS"]
    assert "returned decisions for tasks that it did not get: 9" in rows[0]["error"]


def test_what_cannot_be_sent_to_the_driver_is_refused_in_a_sentence() -> None:
    holding = Composite("holding").with_step(lambda _, batch: batch.after_commit(batch.cancelled.set), name="hold")
    with pytest.raises(TaskQueueError, match="'holding': cannot send a function of in_commit or after_commit"):
        decided(CompositeTransform(holding, 2), "a")


def test_a_size_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(TaskQueueError, match="the size of a batch must be a whole number from 1, not 0"):
        by_composite(Composite("noting").with_batch(len), 0)


def _batch(count: int) -> pa.RecordBatch:
    columns = ("topic", "identifier", "payload", "reference", "attempt", "redelivered")
    values = dict(zip(columns, ("work", "a", "null", None, 1, False), strict=True))
    return pa.RecordBatch.from_pylist([{"sequence": number, **values} for number in range(count)])
