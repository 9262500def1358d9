"""Batches of a composite on a Spark executor: their size, and their tasks under a condition."""

import json
import threading
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pytest

from airflow_provider_taskq.queue import Condition, Result, Task, TaskQueueError
from airflow_provider_taskq.spark.composite import CompositeTransform, by_composite
from airflow_provider_taskq.spark.driver_commit import DriverActions
from airflow_provider_taskq.worker.composite import Composite

pytestmark = pytest.mark.promise("A composite gives the same results in threads and as a Spark plan")

FAILURE, SUSPENSION, FILTER, SUCCESS = Result
PLAIN = Condition.SINGULAR_BY_IDENTIFIER
UNTIL = Condition.SINGULAR_BY_IDENTIFIER_SUSPEND_UNTIL_SUCCESS


class Noting:
    """A step that records its batches, and returns the result that the payload of each task names."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def __call__(self, tasks: Sequence[Task]) -> Mapping[Task, Result]:
        self.batches.append([task.sequence for task in tasks])
        return {task: Result[str(task.payload)] for task in tasks}


def decided(transform: CompositeTransform, *identifiers: str, batch: int = 100) -> list[int]:
    """Runs a partition with these identifiers, each with an optional result. Returns the decided sequences."""
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
    return CompositeTransform(Composite("noting").with_batch(noting), size).in_drain(condition, {})


def test_a_batch_of_a_partition_has_at_most_the_given_size(noting: Noting) -> None:
    assert decided(transform(noting, 2), *"abcde") == [0, 1, 2, 3, 4]
    assert noting.batches == [[0, 1], [2, 3], [4]]


def test_under_a_condition_a_batch_has_one_task_of_each_identifier(noting: Noting) -> None:
    assert decided(transform(noting, 10, PLAIN), "a", "a", "a", "b", "c", "c") == [0, 3, 4, 1, 5, 2]
    assert noting.batches == [[0, 3, 4], [1, 5], [2]]


def test_no_task_of_an_identifier_is_handled_after_one_that_did_not_succeed(noting: Noting) -> None:
    given = ("a", "a FAILURE", "a", "b SUSPENSION", "b", "c FILTER", "c")
    assert sorted(decided(transform(noting, 10, PLAIN), *given)) == [0, 1, 3, 4, 5, 6]
    assert sorted(decided(transform(noting, 10, UNTIL), *given)) == [0, 1, 3, 5, 6]


@pytest.mark.parametrize("batch", [1, 2, 100], ids=lambda size: f"arrow batches of {size}")
def test_an_identifier_stays_blocked_in_the_next_chunk(noting: Noting, batch: int) -> None:
    assert decided(transform(noting, 2, PLAIN), "a FAILURE", "a", "a", "a", "b", "b", batch=batch) == [0, 4, 5]


def test_the_threads_of_a_composite_end_with_the_partition(noting: Noting) -> None:
    before = set(threading.enumerate())
    both = Composite("both").with_batch(noting, name="a").with_batch(noting, name="b")
    assert decided(CompositeTransform(both, 2), *"abcd") == [0, 1, 2, 3]
    new = set(threading.enumerate()) - before
    for thread in new:
        thread.join(30)
    assert not any(thread.is_alive() for thread in new)


def test_a_batch_that_fails_does_not_fail_the_next_batch() -> None:
    def foreign(tasks: Sequence[Task]) -> Mapping[Task, Result]:
        own = dict.fromkeys(tasks, SUCCESS)
        return own | {Task(9, "work", "x", None, None, 1, False): SUCCESS} if tasks[0].sequence == 0 else own

    failing = CompositeTransform(Composite("foreign").with_batch(foreign), 2)
    rows = pa.Table.from_batches(failing.decide(iter([_batch(3)]), DriverActions.pickled)).to_pylist()
    assert [row["result"] for row in rows] == ["FAILURE", "FAILURE", "SUCCESS"]
    assert "returned decisions for tasks that it did not get: 9" in rows[0]["error"]


def test_a_commit_hook_that_does_not_pickle_raises_one_sentence() -> None:
    holding = Composite("holding").with_step(lambda _, batch: batch.after_commit(batch.cancelled.set), name="hold")
    with pytest.raises(TaskQueueError, match="'holding': cannot send a function of in_commit or after_commit"):
        decided(CompositeTransform(holding, 2), "a")


def test_an_invalid_batch_size_raises() -> None:
    with pytest.raises(TaskQueueError, match="the size of a batch must be a whole number of at least 1, not 0"):
        by_composite(Composite("noting").with_batch(len), 0)


def _batch(count: int) -> pa.RecordBatch:
    columns = ("topic", "identifier", "payload", "reference", "attempt", "redelivered")
    values = dict(zip(columns, ("work", "a", "null", None, 1, False), strict=True))
    return pa.RecordBatch.from_pylist([{"sequence": number, **values} for number in range(count)])
