"""Exactly once: each task has one decision and one follow-up, although Spark tasks and the driver fail."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import DataFrame

from airflow_provider_taskq.queue import LeaseLost, TaskQueue, connect
from airflow_provider_taskq.spark import DrainResult
from airflow_provider_taskq.spark.data_source import TaskQDataSource
from airflow_provider_taskq.spark.encoding import Attempt
from airflow_provider_taskq.spark.staging import task_context
from airflow_provider_taskq.spark.writers import BatchWriter
from tests.internals import hold_tasks
from tests.spark.conftest import Drained, Push, check_decided_once, names, states, wait_until
from tests.spark.programs.transforms import wait_and_follow
from tests.spark.successor import taken_over

pytestmark = pytest.mark.promise("The decisions and follow-ups of a round are committed together, or not at all")


COLUMNS = "sequence long, result string, push string"


@pytest.fixture(autouse=True)
def _topic(queue: TaskQueue) -> None:
    queue.create_topic("next")


def follow(tasks: DataFrame) -> DataFrame:
    """Decides every task, and a task of the topic `next`, named after its sequence, follows it."""
    following = """concat('[{"topic": "next", "identifier": "', sequence, '"}]') AS push"""
    return tasks.selectExpr("sequence", "'SUCCESS' AS result", following)


def check_once(queue: TaskQueue, sequences: list[int], *results: DrainResult, crashes: int = 0) -> None:
    """Every task has succeeded at its first attempt, is followed by one task, and the results add up."""
    check_decided_once(queue, len(sequences), crashes)
    assert sorted(names(queue, "next")) == sorted(str(sequence) for sequence in sequences)
    if results:
        assert sum(result.done for result in results) == sum(result.pushed for result in results) == len(sequences)
        for result in results:
            assert sum(result.completed.values()) == result.done
            assert result.claimed + result.resumed == result.done + result.undecided + result.returned


@pytest.mark.promise("Held tasks are read again with the same rows, in partitions of nearly equal size")
def test_several_actions_on_a_dataframe_decide_each_task_once(
    drained: Drained, queue: TaskQueue, push: Push, capfd: pytest.CaptureFixture[str]
) -> None:
    sequences = push(100)

    def look(tasks: DataFrame) -> DataFrame:
        assert tasks.count() == 100
        tasks.show(3)
        decisions = follow(tasks)
        assert len(decisions.collect()) == 100
        return decisions

    check_once(queue, sequences, drained(look, size=100))
    assert "item-0" in capfd.readouterr().out


@pytest.mark.promise("a Spark task runs twice, or an executor is killed")
def test_an_attempt_that_fails_after_staging_all_rows_decides_no_task_twice(
    drained: Drained, queue: TaskQueue, push: Push, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(BatchWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> Attempt:
            attempt = super().write(iterator)
            if task_context().attemptNumber() == 0:
                raise RuntimeError("the staged rows are committed, and this try has failed")
            return attempt

    original = TaskQDataSource.with_connection

    def failing(connection_info: Any, name: str) -> Any:
        class FailingSource(original(connection_info, name)):  # type: ignore[misc]
            def writer(self, schema: Any, overwrite: bool) -> Any:
                return Failing(**vars(super().writer(schema, overwrite)))

        return FailingSource

    sequences = push(100)
    monkeypatch.setattr(TaskQDataSource, "with_connection", failing)
    check_once(queue, sequences, drained(follow))


def test_a_drain_without_tasks_or_decisions_changes_nothing(drained: Drained, queue: TaskQueue, push: Push) -> None:
    def never(_: DataFrame) -> DataFrame:
        raise AssertionError("there are no tasks to transform")

    result = drained(never, rounds=None)
    assert (result.claimed, result.done, result.pushed, result.rounds) == (0, 0, 0, 0)
    push(10)
    nothing = drained(lambda tasks: follow(tasks).where("false"), rounds=None, max_undecided=10)
    assert (nothing.claimed, nothing.done, nothing.pushed, nothing.undecided) == (10, 0, 0, 10)
    assert (states(queue), names(queue, "next"), queue.owners()) == ({"READY": 10}, [], [])


@pytest.mark.promise("Nothing is decided twice")
def test_a_lease_lost_during_a_job_decides_and_pushes_nothing(
    drained: Drained, dsn: str, queue: TaskQueue, push: Push, tmp_path: Path
) -> None:
    sequences = push(100)
    gate = tmp_path / "gate"
    gated = {"gate": str(gate)}
    with taken_over(dsn, gate):
        with pytest.raises(LeaseLost, match="registered again"):
            drained(lambda tasks: wait_and_follow(tasks, gated), lease=timedelta(seconds=12))
        assert states(queue) == {"ACTIVE": 100}
        assert names(queue, "next") == []
    result = drained(follow)
    assert (result.claimed, result.rounds) == (100, 10), "the tasks have had a crash"
    check_once(queue, sequences, result, crashes=1)


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
            wait_until(conn, BLOCKED.format("commit_stage" if when == "during" else "close_stage"), process)
        yield


@pytest.mark.promise("the Spark driver is killed")
@pytest.mark.own_database
@pytest.mark.parametrize(
    "when",
    [
        pytest.param("before", marks=pytest.mark.chaos),
        pytest.param("during", marks=pytest.mark.faults),
        pytest.param("after", marks=pytest.mark.chaos),
    ],
)
def test_a_driver_killed_around_its_commit_commits_all_decisions_or_none(
    drained: Drained,
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
    found = states(queue)
    committed = found == {"SUCCEEDED": 100}
    assert committed or found == {"ACTIVE": 100}
    if when != "during":  # Spark's own worker, which commits, may outlive the driver by a moment
        assert committed == (when == "after")
    result = drained(follow)
    assert (result.claimed, result.done, result.pushed) == ((0, 0, 0) if committed else (100, 100, 100))
    check_once(queue, sequences, crashes=0 if committed else 1)
