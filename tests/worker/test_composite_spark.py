"""Composites on a Spark executor: their batches and their errors."""

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_provider_taskq.queue import (
    Condition,
    Insertion,
    Result,
    State,
    Task,
    TaskQueue,
    TaskQueueError,
)
from airflow_provider_taskq.spark import drain
from airflow_provider_taskq.spark.application import _load_transform, _parser
from airflow_provider_taskq.spark.composite import CompositeTransform, by_composite
from airflow_provider_taskq.worker.composite import Composite

NONE = Condition.NONE
PLAIN = Condition.SINGULAR_BY_IDENTIFIER
UNTIL = Condition.SINGULAR_BY_IDENTIFIER_SUSPEND_UNTIL_SUCCESS

pytestmark = [
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.promise("A composite gives the same results in threads and as a Spark plan"),
]


class Noting:
    """A step that records its batches, and returns the result that the payload of each task names."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def __call__(self, tasks: Sequence[Task]) -> Mapping[Task, Result]:
        self.batches.append([task.sequence for task in tasks])
        return {task: Result[str(task.payload)] for task in tasks}


def decided(transform: CompositeTransform, *identifiers: str, batch: int = 100) -> list[dict[str, Any]]:
    """Runs a partition with these identifiers, each with an optional result. Returns the decisions."""
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
    return [row for made in transform.decide(iter(batches)) for row in made.to_pylist()]


UNSUCCESSFUL = ("a", "a FAILURE", "a", "b SUSPENSION", "b", "c FILTER", "c")
BLOCKED = ("a FAILURE", "a", "a", "a", "b", "b")
CHUNKS = {
    "size": (("a", "b", "c", "d", "e"), NONE, 2, 100, [[0, 1], [2, 3], [4]]),
    "one of each identifier": (("a", "a", "a", "b", "c", "c"), PLAIN, 10, 100, [[0, 3, 4], [1, 5], [2]]),
    "none after one that failed": (UNSUCCESSFUL, PLAIN, 10, 100, [[0, 3, 5], [1, 4, 6]]),
    "none after one that did not succeed": (UNSUCCESSFUL, UNTIL, 10, 100, [[0, 3, 5], [1, 6]]),
    "nor in the next chunk": (BLOCKED, PLAIN, 2, 100, None),
    "of Arrow batches of one": (BLOCKED, PLAIN, 2, 1, None),
    "of two": (BLOCKED, PLAIN, 2, 2, None),
}


@pytest.mark.parametrize(("given", "condition", "size", "arrow", "batches"), CHUNKS.values(), ids=CHUNKS)
def test_a_batch_of_a_partition_has_at_most_the_given_size_and_keeps_the_condition(
    given: tuple[str, ...], condition: Condition, size: int, arrow: int, batches: list[list[int]] | None
) -> None:
    noting = Noting()
    transform = CompositeTransform(Composite("noting").with_step(noting, mode="BATCH"), size, condition=condition)
    rows = decided(transform, *given, batch=arrow)
    made = [row["sequence"] for row in rows if row["delay"] is None]
    blocked = {row["sequence"] for row in rows if row["delay"] == 0}  # the commit drops and counts these
    assert blocked | set(made) == set(range(len(given)))
    assert made == [number for each in noting.batches for number in each]
    if batches is None:
        assert made == [0, 4, 5]
    else:
        assert noting.batches == batches


def test_the_threads_of_a_composite_end_with_the_partition() -> None:
    before = set(threading.enumerate())
    both = Composite("both").with_step(Noting(), name="a", mode="BATCH").with_step(Noting(), name="b", mode="BATCH")
    assert len(decided(CompositeTransform(both, 2), *"abcd")) == 4
    new = set(threading.enumerate()) - before
    for thread in new:
        thread.join(30)
    assert not any(thread.is_alive() for thread in new)


def test_a_batch_that_fails_does_not_fail_the_next_batch() -> None:
    def foreign(tasks: Sequence[Task]) -> Mapping[Task, Result]:
        own = dict.fromkeys(tasks, Result.SUCCESS)
        strange = {Task(9, "work", "x", None, None, 1, False): Result.SUCCESS}
        return own | strange if tasks[0].sequence == 0 else own

    rows = decided(CompositeTransform(Composite("foreign").with_step(foreign, mode="BATCH"), 2), *"abc")
    assert [row["result"] for row in rows] == ["FAILURE", "FAILURE", "SUCCESS"]
    assert "returned decisions for tasks that it did not get: 9" in rows[0]["error"]


WORKER_ONLY = {
    "in_commit": lambda _, batch: batch.in_commit(lambda *_: None),
    "after_commit": lambda _, batch: batch.after_commit(lambda: None),
    "displacement": lambda task, batch: batch.push(task, "next", ["b"], Insertion.REPLACE),
}


@pytest.mark.parametrize("step", WORKER_ONLY.values(), ids=WORKER_ONLY)
def test_what_a_composite_cannot_do_on_spark_and_an_invalid_size_raise_one_sentence(step: Any) -> None:
    only = CompositeTransform(Composite("mine").with_step(step, name="a"), 2)
    with pytest.raises(
        TaskQueueError, match="'mine': on Spark a composite supports no in_commit, no after_commit, and"
    ):
        decided(only, "a")
    with pytest.raises(TaskQueueError, match="invalid size 0: expected at least 1"):
        by_composite(Composite("noting").with_step(len, mode="BATCH"), 0)


@pytest.mark.slow
def test_a_composite_that_spark_cannot_run_raises_one_sentence_and_releases_its_tasks(
    spark: SparkSession, dsn: str, queue: TaskQueue
) -> None:
    queue.push("work", ["a", "b"])
    taking_part = Composite("taking part").with_step(WORKER_ONLY["in_commit"], name="a")
    locked = threading.Lock()
    unpicklable = Composite("locked").with_step(lambda _: locked.locked() and None, name="a")
    for composite, condition, words in (
        (Composite("empty"), NONE, "composite 'empty' has no steps"),
        (unpicklable, NONE, "composite 'locked': cannot send it to Spark's executors"),
        (taking_part, NONE, "supports no in_commit, no after_commit"),
    ):
        with pytest.raises(TaskQueueError, match=words):
            drain(spark, "work", "me", composite, dsn=dsn, condition=condition)
        assert [task.state for task in queue.page("work")] == [State.READY] * 2


def test_the_program_takes_a_composite_by_name() -> None:
    named = ["--topic", "work", "--owner", "me", "--composite"]
    transform = _load_transform(_parser().parse_args([*named, "tests.worker.orders:orders"]))
    assert isinstance(transform, CompositeTransform)
    assert [step.name for step in transform.composite.steps] == ["load", "name_handler"]
    with pytest.raises(TaskQueueError, match=r"module tests\.worker\.orders has no composite 'load'"):
        _load_transform(_parser().parse_args([*named, "tests.worker.orders:load"]))
