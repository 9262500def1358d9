"""Rounds of claim, transform and commit, until no task is ready or a limit is reached; and their progress."""

import json
import logging
import urllib.request
from datetime import UTC, datetime, timedelta, tzinfo
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_taskq.queue import (
    Condition,
    NewTask,
    Order,
    Result,
    RetryPolicy,
    TaskQueue,
    TaskQueueError,
    TooManyFailures,
    TopicPolicy,
)
from airflow_provider_taskq.spark import DrainProgress, StopReason, progress
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.drain import DrainLimits, DrainTotals
from airflow_provider_taskq.spark.session import DrainSession
from tests.queue.conftest import until
from tests.spark.conftest import NUMBER, Drained, Push, staged, states, succeed
from tests.spark.programs.transforms import wait_for_gate

pytestmark = pytest.mark.promise("A drain claims round by round within its limits, and releases what it did not begin")


MOMENT = datetime(2026, 1, 1)  # noqa: DTZ001


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ((0, None, None, None), "invalid size 0: expected at least 1"),
        ((None, 0, None, None), "invalid rounds 0: expected at least 1"),
        ((None, None, 0, None), "invalid budget 0: expected at least 1"),
        ((1.5, None, None, None), "invalid size 1.5"),
        ((None, None, None, -5), "invalid deadline -5 s"),
        ((None, None, None, MOMENT), "deadline must have a time zone"),
    ],
)
def test_an_invalid_limit_is_refused(limits: tuple[Any, Any, Any, Any], words: str) -> None:
    with pytest.raises(TaskQueueError, match=words):
        DrainLimits.of(*limits)


def test_a_deadline_is_a_moment_or_a_duration() -> None:
    assert DrainLimits.of(None, None, None, datetime.now(UTC)).reached(DrainTotals()) is StopReason.DEADLINE
    assert DrainLimits.of(None, None, None, 3600).reached(DrainTotals()) is None


def test_rounds_continue_until_no_task_is_ready(
    drained: Drained, queue: TaskQueue, push: Push, caplog: pytest.LogCaptureFixture
) -> None:
    queue.alter_topic("work", TopicPolicy(retry=RetryPolicy(max_attempts=3, base=timedelta(0))))
    push(25)
    reports: list[DrainProgress] = []

    def decide(tasks: DataFrame) -> DataFrame:
        result = f"CASE {NUMBER} WHEN 2 THEN 'FAILURE' ELSE 'SUCCESS' END AS result"
        return tasks.where(f"{NUMBER} > 1").selectExpr("sequence", result)

    with caplog.at_level(logging.INFO):
        result = drained(decide, size=10, rounds=None, max_undecided=2, on_progress=reports.append)
    # 25 tasks, of which one fails three times; the two without a decision come once
    assert (result.claimed, result.done, result.undecided, result.rounds) == (27, 25, 2, 4)
    assert result.completed == {Result.FAILURE: 3, Result.SUCCESS: 22}
    assert result.stop_reason is StopReason.EMPTY
    assert states(queue) == {"READY": 2, "FAILED": 1, "SUCCEEDED": 22}
    assert queue.latest("work", ["item-0"])["item-0"].attempt == 0
    at_the_end = {each.round: (each.claimed, each.done) for each in reports}
    assert at_the_end == {1: (10, 8), 2: (20, 18), 3: (26, 24), 4: (27, 25)}
    assert "drain progress: topic=work round=2 done=18 claimed=20" in caplog.text
    assert staged(queue.conn) == 0


@pytest.mark.promise("A drain fails after its commit if more tasks failed than `max_failed` allows")
def test_failures_of_a_finished_drain_do_not_count_in_the_next_drain_of_its_owner(
    drained: Drained, queue: TaskQueue
) -> None:
    def decide(tasks: DataFrame) -> DataFrame:
        return tasks.selectExpr("sequence", "if(identifier LIKE 'bad%', 'FAILURE', 'SUCCESS') AS result")

    queue.push("work", ["a", "bad-1", "bad-2", "c"])
    assert drained(decide, size=2, max_failed=1).failed == 1
    queue.push("work", ["bad-3"])
    with pytest.raises(TooManyFailures, match=r"2 of 3 tasks that ended .* failed, max_failed allows 50 % of them"):
        drained(decide, max_failed="50%")
    assert states(queue) == {"FAILED": 3, "SUCCEEDED": 2}
    again = drained(decide, max_failed=0, max_undecided=2)
    assert (again.done, again.failed) == (0, 0)


@pytest.mark.parametrize("condition", [Condition.NONE, Condition.SINGULAR_BY_IDENTIFIER_SUSPEND_ON_FAILURE])
def test_a_failure_within_its_ttl_is_tried_once_in_a_drain_of_rounds_and_holds_up_no_other(
    drained: Drained, queue: TaskQueue, condition: Condition
) -> None:
    queue.push("work", [NewTask(f"young-{number}", ttl=timedelta(hours=1)) for number in range(4)])
    queue.push("work", [f"other-{number}" for number in range(4)])

    def decide(tasks: DataFrame) -> DataFrame:
        failing = "identifier LIKE 'young%' OR identifier = 'other-3'"
        return tasks.selectExpr("sequence", f"if({failing}, 'FAILURE', 'SUCCESS') AS result")

    result = drained(decide, size=4, rounds=None, condition=condition)
    assert (result.claimed, result.done, result.undecided, result.returned) == (8, 4, 0, 4)
    assert result.completed == {Result.FAILURE: 1, Result.SUCCESS: 3}
    assert result.stop_reason is StopReason.EMPTY
    assert states(queue) == {"READY": 4, "FAILED": 1, "SUCCEEDED": 3}
    young = queue.latest("work", ["young-0"])["young-0"]
    assert (young.attempt, young.error) == (0, None)


def test_a_drain_never_exceeds_its_budget_and_number_of_rounds(drained: Drained, queue: TaskQueue, push: Push) -> None:
    push(10)
    result = drained(succeed, size=4, budget=5, rounds=None)
    assert (result.done, result.rounds, result.stop_reason) == (5, 2, StopReason.BUDGET)
    result = drained(succeed, size=1, rounds=2)
    assert (result.done, result.rounds, result.stop_reason) == (2, 2, StopReason.ROUNDS)
    result = drained(succeed, rounds=None, deadline=timedelta(0))
    assert (result.done, result.rounds, result.stop_reason) == (0, 0, StopReason.DEADLINE)
    assert states(queue) == {"READY": 3, "SUCCEEDED": 7}


def test_a_deadline_that_passes_in_the_first_round_prevents_only_the_second(
    drained: Drained, queue: TaskQueue, push: Push, monkeypatch: pytest.MonkeyPatch
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
    result = drained(take_an_hour, size=4, rounds=None, deadline=half_an_hour)
    assert (result.claimed, result.done, result.undecided) == (4, 4, 0)
    assert (result.rounds, result.stop_reason) == (1, StopReason.DEADLINE)
    assert states(queue) == {"READY": 6, "SUCCEEDED": 4}
    assert queue.owners() == []


def test_an_error_in_a_later_round_keeps_the_commits_of_earlier_ones(
    drained: Drained, queue: TaskQueue, push: Push
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
        drained(decide, size=5, rounds=None)
    assert states(queue) == {"READY": 15, "SUCCEEDED": 5}
    assert queue.latest("work", ["item-6"])["item-6"].attempt == 0
    assert queue.owners() == []


def test_a_drain_claims_the_tasks_of_the_next_round_while_the_current_one_works(
    drained: Drained, queue: TaskQueue, push: Push
) -> None:
    pushed = push(25)
    held = [20, 15, 5]  # at the end of each round, with those of the next one
    rounds: list[int] = []

    def decide(tasks: DataFrame) -> DataFrame:
        rounds.append(held[len(rounds)])
        until(lambda: states(queue).get("ACTIVE") == rounds[-1])
        return succeed(tasks).where(f"sequence <> {pushed[3]}")  # without a decision

    result = drained(decide, size=10, rounds=None, budget=24, max_undecided=1)
    assert rounds == held
    assert (result.claimed, result.done, result.undecided, result.rounds) == (24, 23, 1, 3)
    assert result.stop_reason is StopReason.BUDGET
    assert states(queue) == {"READY": 2, "SUCCEEDED": 23}
    left = [task.sequence for task in queue.page("work", size=25) if task.state.name == "READY"]
    assert left == [pushed[3], pushed[24]]


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


def test_progress_is_reported_while_spark_works_and_the_jobs_of_a_later_round_show_it_in_the_ui(
    spark: SparkSession, drained: Drained, push: Push, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(progress, "PAUSE", 0.2)
    push(120)
    gate = tmp_path / "gate"
    half_a_bar = {"status": "RUNNING", "numTasks": 2, "numCompletedTasks": 1}
    since = len(shown(spark, "description"))

    def hear(progress: DrainProgress) -> None:
        assert progress.claimed == (100 if progress.round == 1 else 120)
        if progress.done == 50 and shown(spark, *half_a_bar)[-1:] == [half_a_bar]:
            gate.touch()
        raise ValueError("an error of the hook ends nothing")

    gated = {"gate": str(gate)}
    result = drained(lambda tasks: wait_for_gate(tasks, gated), size=100, rounds=None, on_progress=hear)
    assert (result.done, result.rounds) == (120, 2)
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    assert list(dict.fromkeys(job["description"] for job in shown(spark, "description")[since:])) == [
        "taskq: decide 100 tasks of topic work for me",
        "taskq: decide 20 tasks of topic work for me (round 2; 100 of 100 are done)",
    ]


def shown(spark: SparkSession, *fields: str) -> list[dict[str, Any]]:
    """The jobs of drains in the UI, the oldest first."""
    context = spark.sparkContext
    url = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/jobs"
    with urllib.request.urlopen(url) as answer:  # noqa: S310
        jobs = sorted(json.load(answer), key=lambda job: int(job["jobId"]))
    return [{field: job[field] for field in fields} for job in jobs if " for me" in job.get("description", "")]
