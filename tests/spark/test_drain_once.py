"""Exactly once: each task has one decision and one follow-up, although Spark tasks and the driver fail."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_taskq.queue import Condition, LeaseLost, NewTask, Result, State, Task, TaskQueue, connect
from airflow_provider_taskq.spark import DrainResult, TaskOutcome, by_task, drain
from tests.internals import hold_tasks
from tests.spark.programs.transforms import wait_and_follow
from tests.spark.successor import taken_over

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.promise("The decisions and follow-ups of a round are committed together, or not at all"),
]

Push = Callable[[int], list[int]]
Connection = psycopg.Connection[Any]

COLUMNS = "sequence long, result string, push string"


@pytest.fixture(autouse=True)
def _topic(queue: TaskQueue) -> None:
    queue.create_topic("next")


def follow(tasks: DataFrame) -> DataFrame:
    """Decides every task, and a task of the topic `next`, named after its sequence, follows it."""
    following = """concat('[{"topic": "next", "identifier": "', sequence, '"}]') AS push"""
    return tasks.selectExpr("sequence", "'SUCCESS' AS result", following)


def check_once(queue: TaskQueue, sequences: list[int], *results: DrainResult) -> None:
    """Every task has succeeded at its first attempt, is followed by one task, and the results add up."""
    assert {state: count.count for state, count in queue.count("work")["work"].items()} == {
        State.SUCCEEDED: len(sequences)
    }
    following = [task.identifier for task in queue.page("next", size=len(sequences) + 1)]
    assert sorted(following) == sorted(str(sequence) for sequence in sequences)
    assert queue.conn.execute(
        "SELECT DISTINCT attempt, crashes FROM taskq.tasks WHERE result IS NOT NULL"
    ).fetchall() == [(1, 0)]
    for table in ("staged", "staged_task", "staged_junction"):
        assert queue.conn.execute(f"SELECT count(*) FROM taskq.{table}").fetchall() == [(0,)]
    assert queue.owners() == []
    if results:
        assert sum(result.done for result in results) == sum(result.pushed for result in results) == len(sequences)
        for result in results:
            assert sum(result.completed.values()) == result.done
            assert result.claimed + result.resumed == result.done + result.undecided


@pytest.mark.promise("Held tasks are read again with the same rows, in partitions of nearly equal size")
def test_several_actions_on_a_dataframe_decide_each_task_once(
    spark: SparkSession, dsn: str, queue: TaskQueue, push: Push, capfd: pytest.CaptureFixture[str]
) -> None:
    sequences = push(100)

    def look(tasks: DataFrame) -> DataFrame:
        assert (tasks.count(), len(tasks.collect())) == (100, 100)
        tasks.show(3)
        decisions = follow(tasks)
        decisions.show(3)
        assert decisions.count() == 100
        return decisions

    check_once(queue, sequences, drain(spark, "work", "me", look, dsn=dsn, size=100))
    assert "item-0" in capfd.readouterr().out


@pytest.mark.promise("a Spark task runs twice, or an executor is killed")
def test_retried_spark_tasks_decide_each_task_once(
    spark: SparkSession, dsn: str, queue: TaskQueue, push: Push, tmp_path: Path
) -> None:
    sequences = push(100)

    def fail_twice(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        assert context is not None
        (tmp_path / f"{context.partitionId()}-{context.attemptNumber()}").touch()
        if context.partitionId() % 2 and context.attemptNumber() < 2:
            raise RuntimeError("this try fails after it has yielded everything")

    result = drain(
        spark, "work", "me", lambda tasks: follow(tasks).mapInArrow(fail_twice, COLUMNS), dsn=dsn, partitions=4
    )
    attempts = {"0-0", "2-0", *(f"{part}-{attempt}" for part in (1, 3) for attempt in range(3))}
    assert {file.name for file in tmp_path.iterdir()} == attempts
    check_once(queue, sequences, result)


@pytest.mark.promise("a Spark task runs twice, or an executor is killed")
def test_an_attempt_that_fails_after_staging_all_rows_decides_no_task_twice(
    spark: SparkSession, dsn: str, queue: TaskQueue, push: Push, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_taskq.spark import follow_ups

    sequences = push(100)

    class Failing(follow_ups.FollowUpWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
            from pyspark import TaskContext

            staged = super().write(iterator)
            context = TaskContext.get()
            assert context is not None
            if context.attemptNumber() == 0:
                raise RuntimeError("the staged rows are committed, and this try has failed")
            return staged

    from airflow_provider_taskq.spark import data_source

    original = data_source._drain_source

    def failing(connection_info: Any, name: str) -> Any:
        class FailingSource(original(connection_info, name)):  # type: ignore[misc]
            def writer(self, schema: Any, overwrite: bool) -> Any:
                return Failing(super().writer(schema, overwrite).decisions)

        return FailingSource

    monkeypatch.setattr(data_source, "_drain_source", failing)
    check_once(queue, sequences, drain(spark, "work", "me", follow, dsn=dsn, partitions=4))


def test_a_drain_without_tasks_or_decisions_changes_nothing(
    spark: SparkSession, dsn: str, queue: TaskQueue, push: Push
) -> None:
    result = drain(spark, "work", "me", follow, dsn=dsn, rounds=None)
    assert (result.claimed, result.done, result.pushed, result.rounds) == (0, 0, 0, 0)
    sequences = push(10)
    nothing = drain(spark, "work", "me", lambda tasks: follow(tasks).where("false"), dsn=dsn, rounds=None)
    assert (nothing.claimed, nothing.done, nothing.pushed, nothing.undecided) == (10, 0, 0, 10)
    check_once(queue, sequences, drain(spark, "work", "me", follow, dsn=dsn, rounds=None))


def test_each_task_is_decided_once_if_most_have_one_identifier(spark: SparkSession, dsn: str, queue: TaskQueue) -> None:
    pushed = queue.push("work", [NewTask("hot" if number % 10 else f"cold-{number}") for number in range(2_000)])

    def work(task: Task) -> TaskOutcome:
        return TaskOutcome(Result.SUCCESS, push={"next": [str(task.sequence)]})

    result = drain(
        spark, "work", "me", by_task(work), dsn=dsn, condition=Condition.SINGULAR_BY_IDENTIFIER, size=900, rounds=None
    )
    assert result.rounds == 3
    check_once(queue, [task.sequence for task in pushed], result)


def test_a_lease_lost_during_a_job_decides_and_pushes_nothing(
    spark: SparkSession, dsn: str, queue: TaskQueue, push: Push, tmp_path: Path
) -> None:
    sequences = push(100)
    gate = tmp_path / "gate"
    gated = {"gate": str(gate)}
    with taken_over(dsn, gate):
        with pytest.raises(LeaseLost, match="registered again"):
            drain(
                spark,
                "work",
                "me",
                lambda tasks: wait_and_follow(tasks, gated),
                dsn=dsn,
                lease=timedelta(seconds=12),
                partitions=2,
            )
        assert queue.count("work")["work"][State.ACTIVE].count == 100
        assert queue.page("next") == []
    result = drain(spark, "work", "me", follow, dsn=dsn, partitions=2)
    assert result.resumed == 100
    check_once(queue, sequences, result)


def wait_until(conn: Connection, question: str, process: subprocess.Popen[bytes] | None = None) -> None:
    """Waits until a query of the database returns true."""
    deadline = time.monotonic() + 600
    while conn.execute(question.encode()).fetchall() != [(True,)]:
        assert time.monotonic() < deadline, question
        assert process is None or process.poll() is None
        time.sleep(0.05)  # between two checks


BEFORE = "SELECT count(*) > 0 FROM taskq.staged"
BLOCKED = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{}%'"


@contextmanager
def held_up(dsn: str, when: str, gate: Path, process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Blocks the driver before, during or after its commit, by a lock on a row that it needs."""
    with connect(dsn) as blocker, connect(dsn, autocommit=True) as conn:
        wait_until(conn, BEFORE, process)
        if when == "during":
            [last] = TaskQueue(conn).page("work", before=2**62, size=1)
            hold_tasks(blocker, last.sequence)
        if when == "after":
            blocker.execute("SELECT FROM taskq.staged FOR UPDATE")
        if when != "before":
            gate.touch()
            wait_until(conn, BLOCKED.format("complete_staged" if when == "during" else "finish_stage"), process)
        yield


@pytest.mark.promise("the Spark driver is killed")
@pytest.mark.parametrize(
    "when", [pytest.param("before", marks=pytest.mark.chaos), "during", pytest.param("after", marks=pytest.mark.chaos)]
)
def test_a_driver_killed_around_its_commit_commits_all_decisions_or_none(
    spark: SparkSession,
    dsn: str,
    queue: TaskQueue,
    push: Push,
    python_environment: Mapping[str, str],
    tmp_path: Path,
    when: str,
) -> None:
    sequences = push(100)
    gate = tmp_path / "gate"
    environment = {**python_environment, "TASKQ_DSN": make_conninfo(dsn, application_name="the driver")}
    command = [sys.executable, "-m", "airflow_provider_taskq.spark.drain", "--topic", "work", "--owner", "me"]
    command += ["--transform", "transforms:wait_and_follow", "--option", f"gate={gate}", "--partitions", "4"]
    with subprocess.Popen(command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL) as first:
        with held_up(dsn, when, gate, first):
            os.killpg(first.pid, signal.SIGKILL)
            assert first.wait(600) != 0
        wait_until(queue.conn, "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'the driver'")
    states = {state: count.count for state, count in queue.count("work")["work"].items()}
    committed = states == {State.SUCCEEDED: 100}
    assert committed or states == {State.ACTIVE: 100}
    if when != "during":  # Spark's own worker, which commits, may outlive the driver by a moment
        assert committed == (when == "after")
    result = drain(spark, "work", "me", follow, dsn=dsn)
    assert (result.resumed, result.done, result.pushed) == ((0, 0, 0) if committed else (100, 100, 100))
    check_once(queue, sequences)
