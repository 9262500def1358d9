"""drain: claim, keep, transform, commit, release."""

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_taskq.queue import (
    Insertion,
    InvalidTask,
    LeaseLost,
    NewTask,
    Result,
    RetryPolicy,
    TaskQueue,
    TaskQueueError,
    TopicPolicy,
    UnknownTopic,
    connect,
)
from airflow_provider_taskq.spark import drain
from tests.internals import hold_tasks, lapse_lease
from tests.queue.conftest import lapse, until
from tests.spark.programs.transforms import wait_for_gate
from tests.spark.successor import taken_over

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.promise("A drain claims round by round within its limits, and releases what it did not begin"),
]

Push = Callable[[int], list[int]]

SUCCEED = ("sequence", "'SUCCESS' AS result")
NUMBER = "cast(get_json_object(payload, '$.number') AS int)"


def succeed(tasks: DataFrame) -> DataFrame:
    return tasks.selectExpr(*SUCCEED)


def states(queue: TaskQueue) -> dict[str, int]:
    return {state.name: count.count for state, count in queue.count("work")["work"].items()}


def test_a_topic_is_drained(spark: SparkSession, dsn: str, queue: TaskQueue, push: Push) -> None:
    push(1_000)
    result = drain(
        spark,
        "work",
        "me",
        lambda tasks: tasks.selectExpr("sequence", f"{NUMBER} % 4 AS result").where(f"{NUMBER} >= 100"),
        dsn=dsn,
    )
    assert (result.claimed, result.resumed, result.done, result.undecided) == (1_000, 0, 900, 100)
    assert result.completed == dict.fromkeys(Result, 225)
    assert result.rate > 0
    assert states(queue) == {"READY": 100, "FAILED": 225, "SUSPENDED": 225, "FILTERED": 225, "SUCCEEDED": 225}
    assert queue.owners() == []
    assert queue.latest("work", ["item-3"])["item-3"].attempt == 0


def test_size_is_a_hard_bound(spark: SparkSession, dsn: str, queue: TaskQueue, push: Push) -> None:
    push(20)
    result = drain(spark, "work", "me", succeed, dsn=dsn, size=7, partitions=3)
    assert (result.claimed, result.done) == (7, 7)
    assert states(queue) == {"READY": 13, "SUCCEEDED": 7}


def test_a_drain_processes_the_tasks_that_its_name_holds(
    spark: SparkSession, dsn: str, queue: TaskQueue, push: Push
) -> None:
    push(20)
    queue.claim("work", queue.register("me"), 5)
    result = drain(spark, "work", "me", succeed, dsn=dsn, size=7)
    assert (result.claimed, result.resumed, result.done) == (2, 5, 7)


def test_an_empty_topic_runs_no_spark_job(spark: SparkSession, dsn: str, queue: TaskQueue) -> None:
    def never(_: DataFrame) -> DataFrame:
        raise AssertionError("there are no tasks to transform")

    result = drain(spark, "work", "me", never, dsn=dsn)
    assert (result.claimed, result.done, result.completed, result.undecided) == (0, 0, {}, 0)
    assert queue.owners() == []


def test_a_failure_with_attempts_left_is_tried_again(spark: SparkSession, dsn: str, queue: TaskQueue) -> None:
    queue.alter_topic("work", TopicPolicy(retry=RetryPolicy(max_attempts=3)))
    queue.push("work", [NewTask("a"), NewTask("b")], Insertion.APPEND)
    result = drain(spark, "work", "me", lambda tasks: tasks.selectExpr("sequence", "0 AS result"), dsn=dsn)
    assert result.completed == {Result.FAILURE: 2}
    assert states(queue) == {"READY": 2}
    assert queue.latest("work", ["a"])["a"].status == "retrying"


@pytest.mark.parametrize(
    ("transform", "error", "words"),
    [
        (lambda tasks: tasks.selectExpr("no_such_column"), Exception, "no_such_column"),
        (lambda tasks: tasks.selectExpr("sequence", "'DONE' AS result"), InvalidTask, "unknown result 'DONE'"),
        (lambda _: None, TaskQueueError, "returned a NoneType, not a DataFrame"),
    ],
)
def test_after_an_error_all_tasks_are_given_back(
    spark: SparkSession,
    dsn: str,
    queue: TaskQueue,
    push: Push,
    transform: Callable[[DataFrame], DataFrame],
    error: type[Exception],
    words: str,
) -> None:
    push(10)
    with pytest.raises(error, match=words):
        drain(spark, "work", "me", transform, dsn=dsn)
    assert states(queue) == {"READY": 10}
    assert queue.latest("work", ["item-3"])["item-3"].attempt == 0
    assert queue.owners() == []
    assert drain(spark, "work", "me", succeed, dsn=dsn).done == 10


def test_an_unknown_topic_is_named(spark: SparkSession, dsn: str, queue: TaskQueue) -> None:
    with pytest.raises(UnknownTopic, match="'nowhere'"):
        drain(spark, "nowhere", "me", succeed, dsn=dsn)
    assert queue.owners() == []


@pytest.mark.promise("Nothing is decided twice")
def test_a_drain_that_loses_its_lease_commits_nothing(
    spark: SparkSession, dsn: str, queue: TaskQueue, push: Push, tmp_path: Path
) -> None:
    push(100)
    gate = tmp_path / "gate"
    gated = {"gate": str(gate)}
    with taken_over(dsn, gate), pytest.raises(LeaseLost, match="registered again"):
        drain(
            spark,
            "work",
            "me",
            lambda tasks: wait_for_gate(tasks, gated),
            dsn=dsn,
            lease=timedelta(seconds=12),
            partitions=2,
        )
    assert states(queue) == {"ACTIVE": 100}
    result = drain(spark, "work", "me", succeed, dsn=dsn)
    assert (result.resumed, result.done) == (100, 100)


@pytest.mark.promise("A worker keeps its lease while a handler runs")
def test_a_short_lease_is_kept_through_a_long_job(spark: SparkSession, dsn: str, queue: TaskQueue, push: Push) -> None:
    push(10)

    def slow(tasks: DataFrame) -> DataFrame:
        waiting = threading.Event()
        for _ in range(20):
            waiting.wait(0.5)
            with connect(dsn) as conn:
                assert TaskQueue(conn).expire() == 0
        return succeed(tasks)

    assert drain(spark, "work", "me", slow, dsn=dsn, lease=timedelta(seconds=9)).done == 10
    assert states(queue) == {"SUCCEEDED": 10}


@pytest.mark.promise("Upkeep takes milliseconds and waits for no session")
def test_a_drain_carries_out_upkeep_at_its_start_and_while_spark_works(
    spark: SparkSession, dsn: str, queue: TaskQueue, push: Push
) -> None:
    queue.create_topic("other", keep_succeeded=0)
    other = queue.register("other")
    queue.push("other", [f"{number}" for number in range(1_200)])  # more than one call removes
    queue.complete(other, dict.fromkeys(queue.poll("other", other, 1_200), Result.SUCCESS))
    push(10)

    def slow(tasks: DataFrame) -> DataFrame:
        until(lambda: queue.count_tasks("other") == 0)
        queue.push("other", ["late"])
        dead = queue.register("dead")
        queue.poll("other", dead)
        lapse(queue, dead)
        until(lambda: queue.count_tasks("other", state="READY") == 1)
        return succeed(tasks)

    assert drain(spark, "work", "me", slow, dsn=dsn, lease=timedelta(seconds=9)).done == 10
    assert not [thread for thread in threading.enumerate() if thread.name == "taskq upkeep"]


@pytest.mark.promise("No call of a consumer waits for another consumer")
def test_a_drain_does_not_wait_for_a_session_that_locks_a_task_of_a_lapsed_owner(
    spark: SparkSession, dsn: str, queue: TaskQueue, push: Push
) -> None:
    push(2)
    ghost = queue.register("ghost")
    queue.claim("work", ghost, 1)
    lapse_lease(queue.conn)
    with connect(dsn) as busy:
        hold_tasks(busy, *(task.sequence for task in queue.held(ghost)))
        result = drain(spark, "work", "me", succeed, dsn=dsn)
    assert (result.claimed, result.done) == (1, 1)
    assert len(queue.held(ghost)) == 1


def test_the_database_may_be_set_after_spark_has_started(
    spark: SparkSession, dsn: str, queue: TaskQueue, push: Push, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(10)
    monkeypatch.setenv("TASKQ_DSN", dsn)
    assert drain(spark, "work", "me", succeed, size=5).done == 5
    monkeypatch.setenv("TASKQ_DSN", "postgresql://absent@127.0.0.1:1/nowhere")
    with connect(dsn) as conn:
        assert drain(spark, "work", "me", succeed, dsn=conn).done == 5
    assert states(queue) == {"SUCCEEDED": 10}


def test_two_databases_in_one_session_do_not_mix(
    spark: SparkSession, dsn: str, empty_dsn: str, queue: TaskQueue, push: Push
) -> None:
    from airflow_provider_taskq.queue import install

    with psycopg.connect(empty_dsn) as conn:
        install(conn)
        TaskQueue(conn).create_topic("work")
        TaskQueue(conn).push("work", ["elsewhere"])
    push(3)
    seen = {}

    def nested(tasks: DataFrame) -> DataFrame:
        seen["other"] = drain(spark, "work", "me", succeed, dsn=empty_dsn).done
        return succeed(tasks)

    assert drain(spark, "work", "me", nested, dsn=dsn).done == 3
    assert seen == {"other": 1}
    assert states(queue) == {"SUCCEEDED": 3}
