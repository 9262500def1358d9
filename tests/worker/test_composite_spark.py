"""Composites on a Spark executor: their batches, their errors, and commits that are repeated."""

import json
import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_provider_taskq.queue import (
    Condition,
    Decision,
    Insertion,
    NewTask,
    Owner,
    Result,
    State,
    Task,
    TaskQueue,
    TaskQueueError,
)
from airflow_provider_taskq.spark import drain
from airflow_provider_taskq.spark.application import _load_transform, _parser
from airflow_provider_taskq.spark.composite import CompositeTransform, by_composite
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.driver_commit import DriverActions, commit_on_driver
from airflow_provider_taskq.spark.options import HeldOptions
from airflow_provider_taskq.spark.staging import StagedAttempt
from airflow_provider_taskq.spark.writers import BatchWriter, Decisions
from airflow_provider_taskq.worker.batches import Batch
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
    return [row for made in transform.decide(iter(batches), DriverActions.pickled) for row in made.to_pylist()]


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
    transform = CompositeTransform(Composite("noting").with_batch(noting), size).in_drain(condition, {})
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
    both = Composite("both").with_batch(Noting(), name="a").with_batch(Noting(), name="b")
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

    rows = decided(CompositeTransform(Composite("foreign").with_batch(foreign), 2), *"abc")
    assert [row["result"] for row in rows] == ["FAILURE", "FAILURE", "SUCCESS"]
    assert "returned decisions for tasks that it did not get: 9" in rows[0]["error"]


def test_what_an_executor_cannot_send_and_an_invalid_size_raise_one_sentence() -> None:
    holding = Composite("holding").with_step(lambda _, batch: batch.after_commit(batch.cancelled.set), name="hold")
    with pytest.raises(TaskQueueError, match="'holding': cannot send a function of in_commit or after_commit"):
        decided(CompositeTransform(holding, 2), "a")
    with pytest.raises(TaskQueueError, match="the size of a batch must be a whole number of at least 1, not 0"):
        by_composite(Composite("noting").with_batch(len), 0)


@pytest.mark.slow
def test_a_composite_that_spark_cannot_run_raises_one_sentence_and_releases_its_tasks(
    spark: SparkSession, dsn: str, queue: TaskQueue
) -> None:
    queue.push("work", ["a", "b"])
    taking_part = Composite("taking part").with_step(lambda _, batch: batch.in_commit(lambda *_: None), name="a")
    locked = threading.Lock()
    unpicklable = Composite("locked").with_step(lambda _: locked.locked() and None, name="a")
    for composite, condition, words in (
        (Composite("empty"), NONE, "composite 'empty' has no steps"),
        (unpicklable, NONE, "composite 'locked': cannot send it to Spark's executors"),
        (taking_part, PLAIN, "supports no in_commit, no after_commit"),
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


def commit_staged(queue: TaskQueue, dsn: str, owner: Owner, batch: Batch, made: Decision, times: int) -> None:
    """Commits the same decision on all tasks of a batch on the driver, in a drain of rounds."""
    actions = DriverActions.of("orders", batch, dict.fromkeys(batch.tasks, made), NONE).pickled()
    opened = queue.conn.execute("SELECT taskq.open_stage(%s, %s, 'NONE', true)::text", (owner.name, owner.fence))
    [(stage,)] = opened.fetchall()
    row = "INSERT INTO taskq.staged (stage, part, attempt, sequence, result) VALUES (%s, 0, 1, %s, %s)"
    queue.conn.cursor().executemany(row, [(stage, task.sequence, made.result) for task in batch.tasks])
    options = HeldOptions(mode="complete", owner=owner.name, fence=owner.fence, topic="work", partitions=1, stage=stage)
    for _ in range(times):
        writer = BatchWriter(Decisions(options), stage, ConnectionInfo.resolve(dsn))
        commit_on_driver(writer, [StagedAttempt(0, 1, len(batch.tasks))], [actions])


def test_a_repeated_commit_calls_no_commit_hook_twice(
    conn: psycopg.Connection[Any], dsn: str, queue: TaskQueue, owner: Owner, tmp_path: Path
) -> None:
    conn.execute("CREATE TABLE noted (number int)")
    queue.create_topic("next")
    queue.push("work", ["a"])
    batch = Batch(queue.poll("work", owner))

    def note(queue: TaskQueue, _: Mapping[Task, Decision]) -> None:
        queue.conn.execute("INSERT INTO noted VALUES (1)")

    batch.in_commit(note)
    batch.push(batch.tasks[0], "next", ["b"], Insertion.REPLACE)
    batch.after_commit((tmp_path / "committed").touch)
    commit_staged(queue, dsn, owner, batch, Decision(Result.SUCCESS), times=2)  # because the first answer was lost
    assert conn.execute("SELECT count(*) FROM noted").fetchall() == [(1,)]
    assert [task.identifier for task in queue.page("next")] == ["b"]
    assert [task.state for task in queue.page("work")] == [State.SUCCEEDED]
    assert (tmp_path / "committed").exists()


def test_no_follow_up_is_pushed_for_a_decision_that_a_drain_of_rounds_drops(
    dsn: str, queue: TaskQueue, owner: Owner
) -> None:
    queue.create_topic("next")
    queue.push("work", [NewTask("young", ttl=timedelta(hours=1)), NewTask("old")])
    batch = Batch(queue.poll("work", owner, 2))
    for task in batch.tasks:
        batch.push(task, "next", [f"after {task.identifier}"], Insertion.REPLACE)
    commit_staged(queue, dsn, owner, batch, Decision(Result.FAILURE, continued=True), times=1)
    assert [task.identifier for task in queue.page("next")] == ["after old"]
    assert [task.identifier for task in queue.held(owner)] == ["young"]
