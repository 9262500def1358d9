"""Rounds of claim, transform and commit, until no task is ready or a limit is reached; and their progress."""

import json
import logging
import threading
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

from airflow_provider_taskq.queue import (
    Condition,
    NewTask,
    Order,
    Result,
    RetryPolicy,
    State,
    TaskQueue,
    TaskQueueError,
    TooManyFailures,
    TopicPolicy,
)
from airflow_provider_taskq.spark import DrainProgress, StopReason, drain, progress
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.drain import DrainLimits, DrainTotals
from airflow_provider_taskq.spark.session import DrainSession
from tests.queue.conftest import until

pytestmark = pytest.mark.promise("A drain claims round by round within its limits, and releases what it did not begin")

Push = Callable[[int], list[int]]

NUMBER = "cast(get_json_object(payload, '$.number') AS int)"
slow = pytest.mark.slow
PANDAS = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")


def succeed(tasks: DataFrame) -> DataFrame:
    return tasks.selectExpr("sequence", "'SUCCESS' AS result")


def states(queue: TaskQueue) -> dict[str, int]:
    return {state.name: count.count for state, count in queue.count("work")["work"].items()}


@pytest.mark.parametrize("name", ["size", "rounds", "budget"])
def test_limits_start_at_one(name: str) -> None:
    limits: dict[str, int | None] = {"size": None, "rounds": None, "budget": None, name: 0}
    with pytest.raises(TaskQueueError, match=f"{name} must be a whole number of at least 1"):
        DrainLimits.of(limits["size"], limits["rounds"], limits["budget"], None)


def test_a_deadline_needs_a_time_zone() -> None:
    with pytest.raises(TaskQueueError, match="deadline must have a time zone"):
        DrainLimits.of(None, None, None, datetime(2026, 1, 1))  # noqa: DTZ001
    assert DrainLimits.of(None, None, None, datetime.now(UTC)).reached(DrainTotals()) is StopReason.DEADLINE
    assert DrainLimits.of(None, None, None, timedelta(hours=1)).reached(DrainTotals()) is None


@slow
@PANDAS
def test_rounds_continue_until_no_task_is_ready(
    spark: SparkSession, dsn: str, queue: TaskQueue, push: Push, caplog: pytest.LogCaptureFixture
) -> None:
    queue.alter_topic("work", TopicPolicy(retry=RetryPolicy(max_attempts=3, base=timedelta(0))))
    push(25)
    reports: list[DrainProgress] = []
    seen: list[int] = []

    def decide(tasks: DataFrame) -> DataFrame:
        seen.append(tasks.count())
        result = f"CASE {NUMBER} WHEN 2 THEN 'FAILURE' ELSE 'SUCCESS' END AS result"
        return tasks.where(f"{NUMBER} > 1").selectExpr("sequence", result)

    with caplog.at_level(logging.INFO):
        result = drain(spark, "work", "me", decide, dsn=dsn, size=10, rounds=None, on_progress=reports.append)
    assert seen == [10, 10, 6, 1]  # 25 tasks, of which one fails three times; the two without a decision come once
    assert (result.claimed, result.done, result.undecided, result.rounds) == (27, 25, 2, 4)
    assert result.completed == {Result.FAILURE: 3, Result.SUCCESS: 22}
    assert result.stop_reason is StopReason.EMPTY
    assert states(queue) == {"READY": 2, "FAILED": 1, "SUCCEEDED": 22}
    assert queue.latest("work", ["item-0"])["item-0"].attempt == 0
    at_the_end = {each.round: (each.claimed, each.done) for each in reports}
    assert at_the_end == {1: (10, 8), 2: (20, 18), 3: (26, 24), 4: (27, 25)}
    assert "drain progress: topic=work round=2 done=18 claimed=20" in caplog.text
    assert queue.conn.execute("SELECT count(*) FROM taskq.staged").fetchall() == [(0,)]


@pytest.mark.promise("A drain fails after its commit if more tasks failed than `max_failed` allows")
@slow
def test_failures_of_a_finished_drain_do_not_count_in_the_next_drain_of_its_owner(
    spark: SparkSession, dsn: str, queue: TaskQueue
) -> None:
    def decide(tasks: DataFrame) -> DataFrame:
        return tasks.selectExpr("sequence", "if(identifier LIKE 'bad%', 'FAILURE', 'SUCCESS') AS result")

    queue.push("work", ["a", "bad-1", "bad-2", "c"])
    assert drain(spark, "work", "me", decide, dsn=dsn, size=2, max_failed=1).failed == 1
    queue.push("work", ["bad-3"])
    with pytest.raises(TooManyFailures, match=r"2 of 3 tasks that ended .* failed, max_failed allows 50 % of them"):
        drain(spark, "work", "me", decide, dsn=dsn, max_failed="50%")
    assert states(queue) == {"FAILED": 3, "SUCCEEDED": 2}
    again = drain(spark, "work", "me", decide, dsn=dsn, max_failed=0)
    assert (again.done, again.failed) == (0, 0)


@slow
@PANDAS
@pytest.mark.parametrize("condition", [Condition.NONE, Condition.SINGULAR_BY_IDENTIFIER_SUSPEND_ON_FAILURE])
def test_a_failure_within_its_ttl_is_tried_once_in_a_drain_of_rounds_and_holds_up_no_other(
    spark: SparkSession, dsn: str, queue: TaskQueue, condition: Condition
) -> None:
    queue.push("work", [NewTask(f"young-{number}", {"number": number}, ttl=timedelta(hours=1)) for number in range(4)])
    queue.push("work", [NewTask(f"other-{number}", {"number": number}) for number in range(8)])

    def decide(tasks: DataFrame) -> DataFrame:
        failing = "identifier LIKE 'young%' OR number = 7"
        tasks = tasks.withColumn("number", expr(NUMBER))
        return tasks.selectExpr("sequence", f"if({failing}, 'FAILURE', 'SUCCESS') AS result")

    result = drain(spark, "work", "me", decide, dsn=dsn, size=4, rounds=None, condition=condition)
    assert (result.claimed, result.done, result.undecided) == (12, 8, 4)
    assert result.completed == {Result.FAILURE: 1, Result.SUCCESS: 7}
    assert result.stop_reason is StopReason.EMPTY
    assert states(queue) == {"READY": 4, "FAILED": 1, "SUCCEEDED": 7}
    young = queue.latest("work", ["young-0"])["young-0"]
    assert (young.attempt, young.error) == (0, None)
    result = drain(spark, "work", "me", decide, dsn=dsn, size=4, condition=condition)
    assert (result.done, result.completed, result.rounds) == (4, {Result.FAILURE: 4}, 1)
    assert states(queue)["READY"] == 4


@slow
@PANDAS
def test_a_drain_never_exceeds_its_budget_and_number_of_rounds(
    spark: SparkSession, dsn: str, queue: TaskQueue, push: Push
) -> None:
    push(25)
    result = drain(spark, "work", "me", succeed, dsn=dsn, size=4, budget=10, rounds=None)
    assert (result.done, result.rounds, result.stop_reason) == (10, 3, StopReason.BUDGET)
    result = drain(spark, "work", "me", succeed, dsn=dsn, size=4, rounds=2)
    assert (result.done, result.rounds, result.stop_reason) == (8, 2, StopReason.ROUNDS)
    result = drain(spark, "work", "me", succeed, dsn=dsn, rounds=None, deadline=timedelta(0))
    assert (result.done, result.rounds, result.stop_reason) == (0, 0, StopReason.DEADLINE)
    assert states(queue) == {"READY": 7, "SUCCEEDED": 18}


@slow
@PANDAS
def test_a_deadline_that_passes_in_the_first_round_prevents_only_the_second(
    spark: SparkSession, dsn: str, queue: TaskQueue, push: Push, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock(datetime):
        """A clock that the test sets."""

        moment = datetime(2026, 1, 1, tzinfo=UTC)

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return cls.moment.astimezone(tz)

    def take_an_hour(tasks: DataFrame) -> DataFrame:
        until(lambda: states(queue).get("ACTIVE") == 8)  # the second round's tasks are claimed, too
        Clock.moment += timedelta(hours=1)
        return succeed(tasks)

    monkeypatch.setattr(import_module("airflow_provider_taskq.spark.drain"), "datetime", Clock)
    push(10)
    half_an_hour = timedelta(minutes=30)
    result = drain(spark, "work", "me", take_an_hour, dsn=dsn, size=4, rounds=None, deadline=half_an_hour)
    assert (result.claimed, result.done, result.undecided) == (4, 4, 0)
    assert (result.rounds, result.stop_reason) == (1, StopReason.DEADLINE)
    assert states(queue) == {"READY": 6, "SUCCEEDED": 4}
    assert queue.owners() == []


@slow
@PANDAS
def test_an_error_in_a_later_round_keeps_the_commits_of_earlier_ones(
    spark: SparkSession, dsn: str, queue: TaskQueue, push: Push
) -> None:
    push(20)
    rounds: list[int] = []

    def decide(tasks: DataFrame) -> DataFrame:
        rounds.append(1)
        if len(rounds) == 2:
            until(lambda: states(queue).get("ACTIVE") == 10)  # the third round's tasks are claimed, too
            raise RuntimeError("the second round")
        return succeed(tasks)

    with pytest.raises(RuntimeError, match="the second round"):
        drain(spark, "work", "me", decide, dsn=dsn, size=5, rounds=None)
    assert states(queue) == {"READY": 15, "SUCCEEDED": 5}
    assert {task.attempt for task in queue.page("work", size=20) if task.state is State.READY} == {0}
    assert queue.owners() == []


@slow
@PANDAS
def test_a_drain_claims_the_tasks_of_the_next_round_while_the_current_one_works(
    spark: SparkSession, dsn: str, queue: TaskQueue, push: Push
) -> None:
    pushed = push(25)
    held = [20, 15, 5]  # at the end of each round, with those of the next one
    seen: list[list[int]] = []

    def decide(tasks: DataFrame) -> DataFrame:
        until(lambda: states(queue).get("ACTIVE") == held[len(seen)])
        seen.append(sorted(row.sequence for row in tasks.select("sequence").collect()))
        return succeed(tasks).where(f"sequence <> {pushed[3]}")  # without a decision

    result = drain(spark, "work", "me", decide, dsn=dsn, size=10, rounds=None, budget=24)
    assert seen == [pushed[:10], pushed[10:20], pushed[20:24]]
    assert (result.claimed, result.done, result.undecided, result.rounds) == (24, 23, 1, 3)
    assert result.stop_reason is StopReason.BUDGET
    assert states(queue) == {"READY": 2, "SUCCEEDED": 23}


@pytest.mark.parametrize(
    ("order", "condition", "claim", "in_rounds"),
    [
        (Order.LAST_IN_FIRST_OUT, Condition.NONE, None, True),
        (Order.FIRST_IN_FIRST_OUT, Condition.SINGULAR_BY_IDENTIFIER, None, True),
        (Order.FIRST_IN_FIRST_OUT, Condition.NONE, 7, True),
        (Order.FIRST_IN_FIRST_OUT, Condition.NONE, None, False),
    ],
)
def test_a_drain_does_not_claim_ahead_if_this_changes_what_a_round_gets(
    dsn: str, queue: TaskQueue, push: Push, order: Order, condition: Condition, claim: int | None, in_rounds: bool
) -> None:
    push(10)
    lease, info = queue.register("me"), ConnectionInfo.resolve(dsn)
    session = DrainSession(cast("SparkSession", None), info, "work", lease, condition, in_rounds, 0.0, claim)
    assert session.claim_ahead(5, order) is None
    assert queue.ready("work", 100) == 10


@slow
@PANDAS
def test_progress_is_reported_while_spark_works(
    spark: SparkSession, dsn: str, queue: TaskQueue, push: Push, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tests.spark.programs.transforms import wait_for_gate

    monkeypatch.setattr(progress, "PAUSE", 0.2)
    push(100)
    gate = tmp_path / "gate"
    halfway = threading.Event()

    def hear(progress: DrainProgress) -> None:
        assert progress.claimed == 100
        half_a_bar = {"status": "RUNNING", "numTasks": 2, "numCompletedTasks": 1}
        if progress.done == 50 and shown(spark, "watched", *half_a_bar)[-1:] == [half_a_bar]:
            halfway.set()
            gate.touch()
        raise ValueError("an error of the hook ends nothing")

    result = drain(
        spark,
        "work",
        "watched",
        lambda tasks: wait_for_gate(tasks, {"gate": str(gate)}),
        dsn=dsn,
        partitions=2,
        on_progress=hear,
    )
    assert halfway.is_set()
    assert result.done == 100
    assert states(queue) == {"SUCCEEDED": 100}


@slow
@PANDAS
def test_the_jobs_of_a_later_round_show_the_progress_of_the_drain_in_the_ui(
    spark: SparkSession, dsn: str, queue: TaskQueue, push: Push
) -> None:
    push(25)

    def decide(tasks: DataFrame) -> DataFrame:
        assert tasks.count()  # a job of the transform's own
        return succeed(tasks)

    assert drain(spark, "work", "shown", decide, dsn=dsn, size=20, rounds=None).rounds == 2
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    described = [job["description"] for job in shown(spark, "shown", "description")]
    first = "taskq: decide 20 tasks of topic work for shown"
    second = "taskq: decide 5 tasks of topic work for shown (round 2; 20 of 20 are done)"
    assert list(dict.fromkeys(described)) == [first, second]
    assert described.count(first) == described.count(second) >= 2
    assert states(queue) == {"SUCCEEDED": 25}


def shown(spark: SparkSession, owner: str, *fields: str) -> list[dict[str, Any]]:
    """The descriptions of the jobs of an owner's drains in the UI, the oldest first."""
    context = spark.sparkContext
    url = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/jobs"
    with urllib.request.urlopen(url) as answer:  # noqa: S310
        jobs = sorted(json.load(answer), key=lambda job: int(job["jobId"]))
    return [{field: job[field] for field in fields} for job in jobs if f" for {owner}" in job.get("description", "")]
