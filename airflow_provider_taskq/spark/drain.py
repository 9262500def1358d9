"""The function `drain`: claim tasks on the driver, decide them on the cluster, commit all decisions at once.

`python -m airflow_provider_taskq.spark.drain` runs it as a program: see application.py.
"""

import json
import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import ModuleType
from typing import Any

if __name__ == "__main__":  # before the imports of PySpark: run() reports in one line that it is missing
    from airflow_provider_taskq.spark import run

    sys.exit(run())

import psycopg
from pyspark import SparkContext
from pyspark.sql import SparkSession

from airflow_provider_taskq.queue import (
    Condition,
    FailureLimit,
    MaxFailed,
    Order,
    Result,
    TaskQueue,
    TaskQueueError,
    TooManyFailures,
)
from airflow_provider_taskq.spark.composite import by_composite
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.lease import DrainLease
from airflow_provider_taskq.spark.progress import DrainProgress, OnProgress, ProgressReporter, report_progress
from airflow_provider_taskq.spark.session import DrainSession, Transform
from airflow_provider_taskq.worker.composite import Composite

logger = logging.getLogger(__name__)

NO_LIMIT = 2**31 - 1
CLAIM_PAUSE = 0.2  # seconds before a claim is repeated that concurrent polls have kept from tasks
MAX_EMPTY_CLAIMS = 50  # in all, after which such tasks are left


class StopReason(StrEnum):
    """Why a drain began no further round."""

    EMPTY = "EMPTY"  # no task was ready
    ROUNDS = "ROUNDS"  # the limit of rounds was reached
    BUDGET = "BUDGET"  # the limit of tasks was reached
    DEADLINE = "DEADLINE"  # the deadline had passed


@dataclass(slots=True)
class DrainTotals:
    """The sums of all rounds so far."""

    rounds: int = 0
    claimed: int = 0
    resumed: int = 0
    done: int = 0
    pushed: int = 0
    completed: dict[Result, int] = field(default_factory=dict)

    @property
    def processed(self) -> int:
        """All tasks of the rounds, claimed or resumed."""
        return self.claimed + self.resumed

    def add(self, done: int, pushed: int, completed: Mapping[Result, int]) -> None:
        """Adds what a round committed."""
        self.done += done
        self.pushed += pushed
        for result, count in sorted(completed.items()):
            self.completed[result] = self.completed.get(result, 0) + count


@dataclass(frozen=True, slots=True)
class DrainLimits:
    """Tasks in a round, rounds, tasks in all, and the moment after which no round begins; None: no limit."""

    size: int | None
    rounds: int | None
    budget: int | None
    until: datetime | None

    @classmethod
    def of(
        cls, size: int | None, rounds: int | None, budget: int | None, deadline: timedelta | datetime | None
    ) -> "DrainLimits":
        """Checks the limits; raises TaskQueueError for one that is invalid."""
        for name, number in (("size", size), ("rounds", rounds), ("budget", budget)):
            if number is not None and number < 1:
                raise TaskQueueError(f"{name} must be a whole number from 1, or None for no limit, not {number}")
        if isinstance(deadline, timedelta):
            deadline = datetime.now(UTC) + deadline
        elif deadline is not None and deadline.tzinfo is None:
            raise TaskQueueError("deadline must have a time zone: without one its meaning depends on the machine")
        return cls(size, rounds, budget, deadline)

    def reached(self, totals: DrainTotals) -> StopReason | None:
        """The limit that prevents another round, if one does."""
        if self.rounds is not None and totals.rounds >= self.rounds:
            return StopReason.ROUNDS
        if self.budget is not None and totals.processed >= self.budget:
            return StopReason.BUDGET
        if self.until is not None and datetime.now(UTC) >= self.until:
            return StopReason.DEADLINE
        return None

    def next_size(self, totals: DrainTotals) -> int:
        """The maximum number of tasks in the next round."""
        left = NO_LIMIT if self.budget is None else self.budget - totals.processed
        return min(left, NO_LIMIT if self.size is None else self.size)


@dataclass(frozen=True, slots=True)
class DrainResult:
    """What a drain did.

    `done` counts the decided tasks, `completed` the same by result, `undecided` the tasks given back without a
    decision, and `pushed` the follow-ups. `failed` counts the tasks that are FAILED now: with those that a killed drain
    of this owner has committed before, and without those that the topic's policy retries.
    """

    topic: str
    owner: str
    claimed: int
    resumed: int
    done: int
    completed: Mapping[Result, int]
    undecided: int
    seconds: float
    rounds: int
    pushed: int
    stop_reason: StopReason
    failed: int

    @property
    def rate(self) -> float:
        """Tasks decided per second, from registration to release."""
        return self.done / self.seconds if self.seconds else 0.0

    def report(self) -> dict[str, Any]:
        """The result as JSON: the drain stores and logs it, and TaskQSparkSubmitOperator returns it."""
        return {
            "topic": self.topic,
            "owner": self.owner,
            "claimed": self.claimed,
            "resumed": self.resumed,
            "decided": self.done,
            "completed": {result.name: count for result, count in self.completed.items()},
            "failed": self.failed,
            "pushed": self.pushed,
            "undecided": self.undecided,
            "rounds": self.rounds,
            "stop_reason": self.stop_reason.name,
            "seconds": round(self.seconds, 3),
        }


def drain(
    spark: SparkSession,
    topic: str,
    owner: str,
    transform: Transform | Composite,
    *,
    dsn: str | psycopg.Connection[Any] | None = None,
    claim: int | None = None,
    lease: timedelta | None = None,
    size: int | None = None,
    order: Order = Order.FIRST_IN_FIRST_OUT,
    condition: Condition = Condition.NONE,
    partitions: int | None = None,
    rounds: int | None = 1,
    budget: int | None = None,
    deadline: timedelta | datetime | None = None,
    max_failed: MaxFailed = None,
    on_progress: OnProgress | None = None,
) -> DrainResult:
    """Processes up to `size` tasks of a topic (None: all that are ready) through a DataFrame, exactly once.

    `transform` gets the tasks (sequence, topic, identifier, payload, ...; see `TaskQDataSource`) and returns decisions
    (sequence, result, and optionally message, error, delay; push, junctions and continued for follow-ups: see
    follow_ups.py). For a function of batches or of one task see `in_arrow`, `in_pandas` and `by_task`. Or it is a
    composite: its steps then run on executors as they would in a worker (see `by_composite`). All decisions are
    committed together with their follow-ups, or none.

    `owner` names the work, not the attempt. A drain that finds tasks held under this name, by an attempt that was
    killed, processes them together with the tasks that it claims, and locks the earlier attempt out. So two drains must
    not share a name.

    A drain repeats rounds of claim, transform and commit under one lease until no task is ready: at most `rounds` of
    them (None: no limit), with at most `budget` tasks in all. No round begins after the `deadline`. A task without a
    decision comes once in a drain. A task that is retried or snoozed comes again when it is due. If there may be more
    rounds, a failure within a task's ttl, which is not noted, counts as no decision: otherwise the next round would
    claim the task at once. Under a condition, a round has whole identifiers: the tasks of an identifier are in one
    partition in their order, and no task is decided after one that does not end well.

    At the end the drain gives back the tasks without a decision: READY in their old place, and the attempt not counted.
    After an error it gives back all held tasks, and raises the error. Only an attempt that is killed or cut off keeps
    its tasks, until its successor or `expire()` takes them. What earlier rounds have committed stays.

    `claim` is the fence of a claim: `claim["fence"]` of the value that a gate returns, with its owner and topic. The
    drain takes over the tasks of that claim, and claims others only if `budget` says so. Undecided tasks, and all tasks
    after an error, stay held under the claim, for its retry or the next task of the DAG.

    `lease` is five minutes, or that of the claim, unless given. `max_failed` limits how many tasks may fail for good: a
    count (an int) or a share of the tasks that ended (a float), see `FailureLimit`. It stops no round: the drain raises
    TooManyFailures at the end, after all commits, with the counts and the first errors. Failures that the topic's
    policy retries do not count. Failures of an earlier drain of this owner count if that drain was killed.

    `dsn` is a DSN, or an open connection whose parameters to use; None: TASKQ_DSN and the rest of the environment.

    Raises LeaseLost if the claim is gone or a later one of the same name has replaced it; also if the lease is gone, or
    was not extended for two thirds of its length, and then cancels the Spark jobs. Raises TaskQueueError in a session
    of Spark Connect, before it claims anything.
    """
    began = time.monotonic()
    context = _spark_context(spark)
    limits = DrainLimits.of(size, rounds, budget, deadline)
    if isinstance(transform, Composite):
        transform = by_composite(transform)
    # Executors of a local master inherit the driver's environment, so a TASKQ_DSN there is not their own.
    local = (context.master or "").split("[")[0] == "local"
    connection_info = ConnectionInfo.resolve(dsn, executors_may_override=not local)
    failure_limit = FailureLimit.of(max_failed)
    session = DrainSession.open(
        spark, connection_info, topic, owner, lease, condition, in_rounds=rounds != 1, claim=claim
    )
    totals, empty_claims = DrainTotals(), 0
    with session.keep_lease() as drain_lease, session.release_on_error(drain_lease):
        since = session.begin_drain()
        session.expire_lapsed()
        if claim is not None and budget is None:
            limits = replace(limits, budget=session.count_resumed())
        while (stop_reason := limits.reached(totals)) is None:
            before = DrainProgress(topic, owner, totals.rounds, totals.processed, totals.done, time.monotonic() - began)
            if count := _claim(session, limits.next_size(totals), order, totals):
                _run_round(session, transform, count, partitions, drain_lease, before, on_progress, totals)
            elif _may_claim_again(session, empty_claims := empty_claims + 1):
                time.sleep(CLAIM_PAUSE)  # no event reports the end of the concurrent poll
            else:
                if not totals.rounds:
                    _log_claim(topic, 0, 0)
                stop_reason = StopReason.EMPTY
                break
        result, failure = _finish(session, totals, stop_reason, began, since, failure_limit)
    logger.info("drain report: %s", json.dumps(result.report()))
    if failure is not None:
        raise failure
    return result


def _spark_context(spark: SparkSession) -> SparkContext:
    context: SparkContext | None = getattr(spark, "sparkContext", None)
    if context is None:
        raise TaskQueueError(
            "drain cannot run in a session of Spark Connect, which has no SparkContext to describe and cancel jobs:"
            " use a session of the driver's own, or claim with TaskQueue, read mode=held and write mode=complete"
        )
    return context


def _claim(session: DrainSession, size: int, order: Order, totals: DrainTotals) -> int:
    """Claims the tasks of a round; returns their number, in the first round with those that the owner held before."""
    if totals.rounds:
        session.defer_held_tasks()
    resumed = 0 if totals.rounds else session.count_resumed()
    claimed = session.claim(max(0, size - resumed), order)
    totals.claimed += claimed
    totals.resumed += resumed
    if claimed + resumed:
        _log_claim(session.topic, claimed, resumed)
    return claimed + resumed


def _log_claim(topic: str, claimed: int, resumed: int) -> None:
    logger.info("tasks claimed: topic=%s claimed=%s resumed=%s", topic, claimed, resumed)


def _may_claim_again(session: DrainSession, empty_claims: int) -> bool:
    """Whether to repeat a claim that found nothing, because concurrent polls hid tasks from it."""
    if not session.has_unclaimed():
        return False
    if empty_claims <= MAX_EMPTY_CLAIMS:
        return True
    logger.warning("ready tasks are left, as an open transaction locks them: topic=%s", session.topic)
    return False


def _run_round(
    session: DrainSession, transform: Transform, count: int, partitions: int | None, drain_lease: DrainLease,
    before: DrainProgress, on_progress: OnProgress | None, totals: DrainTotals,
) -> None:  # fmt: skip
    """Decides the held tasks, commits the decisions, and adds them to the totals."""
    stage = session.open_stage()
    description = f"taskq: decide {count:,} tasks of topic {session.topic} for {session.lease.name}"
    if before.round:
        description += f" (round {before.round + 1}; {before.done:,} of {before.claimed:,} are done)"
    began = time.monotonic()
    with (
        ProgressReporter(session.connection_info, before, count, stage, on_progress),
        session.job_description(description),
    ):
        session.run_transform(transform, stage, count, partitions, drain_lease)
    totals.add(*session.finish_stage(stage))
    totals.rounds += 1
    seconds = before.seconds + time.monotonic() - began
    progress = DrainProgress(before.topic, before.owner, totals.rounds, totals.processed, totals.done, seconds)
    report_progress(progress, on_progress)


def _finish(
    session: DrainSession,
    totals: DrainTotals,
    stop_reason: StopReason,
    began: float,
    since: datetime,
    failure_limit: FailureLimit | None,
) -> tuple[DrainResult, TooManyFailures | None]:
    """Gives back undecided tasks and stores the report in one transaction; returns the error of `max_failed`, too."""
    topic, lease = session.topic, session.lease
    with session.connection_info.connect() as conn:
        queue = TaskQueue(conn)
        counts = queue.drain_counts(topic, lease.name, since)
        failure = failure_limit.exceeded(topic, counts) if failure_limit else None
        undecided = session.release(queue)
        result = DrainResult(
            topic=topic,
            owner=lease.name,
            claimed=totals.claimed,
            resumed=totals.resumed,
            done=totals.done,
            completed=totals.completed,
            undecided=undecided,
            seconds=time.monotonic() - began,
            rounds=totals.rounds,
            pushed=totals.pushed,
            stop_reason=stop_reason,
            failed=counts.failed,
        )
        outcome = {"claim": session.claim_fence, "failure": None if failure is None else str(failure)}
        queue.end_drain(lease.name, {**result.report(), **outcome}, lease)
    return result, failure


class _CallableModule(ModuleType):
    """This module as a function: if it is imported first, it hides the function of its name in the package."""

    def __call__(self, *arguments: Any, **options: Any) -> DrainResult:
        return drain(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
