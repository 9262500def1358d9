"""drain: claim, keep, transform, commit, release."""

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_taskq.queue import (
    InvalidTask,
    LeaseLost,
    Result,
    TaskQueue,
    TaskQueueError,
    UnknownTopic,
    connect,
)
from airflow_provider_taskq.spark import drain
from tests.internals import hold_tasks, lapse_lease
from tests.queue.conftest import lapse, until
from tests.spark.conftest import NUMBER, Drained, Push, states, succeed

pytestmark = pytest.mark.promise("A drain claims round by round within its limits, and releases what it did not begin")


def no_column(tasks: DataFrame) -> DataFrame:
    return tasks.selectExpr("no_such_column")


def invalid(tasks: DataFrame) -> DataFrame:
    return tasks.selectExpr("sequence", "'DONE' AS result")


def test_a_topic_is_drained(drained: Drained, queue: TaskQueue, push: Push) -> None:
    push(100)
    result = drained(lambda tasks: tasks.selectExpr("sequence", f"{NUMBER} % 4 AS result").where(f"{NUMBER} >= 20"))
    assert (result.claimed, result.resumed, result.done, result.undecided) == (100, 0, 80, 20)
    assert result.completed == dict.fromkeys(Result, 20)
    assert result.rate > 0
    assert states(queue) == {"READY": 20, "FAILED": 20, "SUSPENDED": 20, "FILTERED": 20, "SUCCEEDED": 20}
    assert queue.owners() == []
    assert queue.latest("work", ["item-3"])["item-3"].attempt == 0


@pytest.mark.promise("the Spark driver is killed")
def test_a_drain_processes_the_tasks_that_its_name_holds(drained: Drained, queue: TaskQueue, push: Push) -> None:
    push(20)
    queue.claim("work", queue.register("me"), 5)
    result = drained(succeed, size=7)
    assert (result.claimed, result.resumed, result.done) == (2, 5, 7)
    assert states(queue) == {"READY": 13, "SUCCEEDED": 7}


def test_a_drain_of_a_claim_takes_its_tasks_only_and_after_an_error_they_stay_held(
    spark: SparkSession, dsn: str, queue: TaskQueue, push: Push
) -> None:
    push(5)
    gate = queue.register("gate", timedelta(minutes=20))
    queue.claim("work", gate, 3)
    with pytest.raises(Exception, match="no_such_column"):
        drain(spark, "work", "gate", no_column, dsn=dsn, claim=gate.fence)
    holder = queue.owner("gate", gate.fence)
    assert holder is not None
    assert (holder.lease, len(queue.held(holder))) == (timedelta(minutes=20), 3)
    result = drain(spark, "work", "gate", succeed, dsn=dsn, claim=gate.fence, rounds=None)
    assert (result.claimed, result.resumed, result.done) == (0, 3, 3)
    assert states(queue) == {"READY": 2, "SUCCEEDED": 3}
    queue.register("gate")
    with pytest.raises(LeaseLost, match="the name was registered again"):
        drain(spark, "work", "gate", succeed, dsn=dsn, claim=gate.fence)


@pytest.mark.parametrize(
    ("topic", "transform", "error", "words"),
    [
        ("work", no_column, Exception, "no_such_column"),
        ("work", invalid, InvalidTask, "unknown result 'DONE'"),
        ("work", lambda _: None, TaskQueueError, "returned a NoneType, not a DataFrame"),
        ("nowhere", succeed, UnknownTopic, "'nowhere'"),
    ],
    ids=["in the plan", "on an executor", "no DataFrame", "unknown topic"],
)
def test_after_an_error_all_tasks_are_given_back(
    spark: SparkSession,
    dsn: str,
    queue: TaskQueue,
    push: Push,
    topic: str,
    transform: Callable[[DataFrame], DataFrame],
    error: type[Exception],
    words: str,
) -> None:
    push(10)
    with pytest.raises(error, match=words):
        drain(spark, topic, "me", transform, dsn=dsn, partitions=1)
    assert states(queue) == {"READY": 10}
    assert queue.latest("work", ["item-3"])["item-3"].attempt == 0
    assert queue.owners() == []


@pytest.mark.promise("Upkeep takes milliseconds and waits for no session")
def test_a_drain_carries_out_upkeep_at_its_start_and_while_spark_works(
    drained: Drained, queue: TaskQueue, push: Push
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

    assert drained(slow, lease=timedelta(seconds=9)).done == 10
    assert not [thread for thread in threading.enumerate() if thread.name == "taskq upkeep"]


@pytest.mark.promise("No call of a consumer waits for another consumer")
def test_a_drain_does_not_wait_for_a_session_that_locks_a_task_of_a_lapsed_owner(
    drained: Drained, dsn: str, queue: TaskQueue, push: Push
) -> None:
    push(2)
    ghost = queue.register("ghost")
    queue.claim("work", ghost, 1)
    lapse_lease(queue.conn)
    with connect(dsn) as busy:
        hold_tasks(busy, *(task.sequence for task in queue.held(ghost)))
        result = drained(succeed)
    assert (result.claimed, result.done) == (1, 1)
    assert len(queue.held(ghost)) == 1


def test_the_database_may_be_set_after_spark_has_started(
    drained: Drained, dsn: str, queue: TaskQueue, push: Push, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(10)
    monkeypatch.setenv("TASKQ_DSN", dsn)
    assert drained(succeed, dsn=None, size=5).done == 5
    monkeypatch.setenv("TASKQ_DSN", "postgresql://absent@127.0.0.1:1/nowhere")
    with connect(dsn) as conn:
        assert drained(succeed, dsn=conn).done == 5
    assert states(queue) == {"SUCCEEDED": 10}


def test_two_databases_in_one_session_do_not_mix(drained: Drained, own_dsn: str, queue: TaskQueue, push: Push) -> None:
    with connect(own_dsn) as conn:
        TaskQueue(conn).create_topic("work")
        TaskQueue(conn).push("work", ["elsewhere"])
    push(3)
    seen = {}

    def nested(tasks: DataFrame) -> DataFrame:
        seen["other"] = drained(succeed, dsn=own_dsn).done
        return succeed(tasks)

    assert drained(nested).done == 3
    assert seen == {"other": 1}
    assert states(queue) == {"SUCCEEDED": 3}
