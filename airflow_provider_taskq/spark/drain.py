"""Drain: claim on the driver, keep the lease, turn tasks into decisions on the cluster, commit them all at once."""

import json
import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import ModuleType
from typing import Any

if __name__ == "__main__":  # before PySpark is imported: run() reports in one line that it is missing
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
from airflow_provider_taskq.spark.connection import Route
from airflow_provider_taskq.spark.lease import DrainLease
from airflow_provider_taskq.spark.limits import Ended, Limits, Tally
from airflow_provider_taskq.spark.progress import OnProgress, Progress, Watch, told
from airflow_provider_taskq.spark.session import Holding, Transform
from airflow_provider_taskq.worker.composite import Composite

logger = logging.getLogger(__name__)

CLAIMED = "claimed %s tasks of topic %s, %s more were held already"
AGAIN = 0.2  # seconds until a claim looks again at what somebody else was looking at
LOOKS = 50  # in a row, until what that keeps is left


@dataclass(frozen=True, slots=True)
class DrainResult:
    """What a drain did. `done` is the number of tasks decided, `undecided` of those given back without a decision.

    `completed` counts the decided ones by result, `pushed` the follow-ups, and `ended` says why there was no further
    round. `failed` counts the tasks that are FAILED now: also those that a killed drain of this owner has committed
    before, and none that the topic's policy retries.
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
    ended: Ended
    failed: int

    @property
    def rate(self) -> float:
        """Tasks decided per second, from registration to release."""
        return self.done / self.seconds if self.seconds else 0.0

    def report(self) -> dict[str, Any]:
        """The result as JSON: what the application logs, and TaskQSparkSubmitOperator returns."""
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
            "ended": self.ended.name,
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
    """Works off up to `size` tasks of a topic (None: all that are ready) through a DataFrame, exactly once.

    `transform` takes the tasks (sequence, topic, identifier, payload, ...; see `TaskQDataSource`) and returns decisions
    (sequence, result, and if wanted message, error, delay; follow-ups in push, junctions, continued: see
    follow_ups.py). For a function of batches or of one task see `in_arrow`, `in_pandas` and `by_task`. Or it is a
    composite: its steps run on executors, as they would on a worker's threads (see `by_composite`). The decisions
    land all together, their follow-ups with them, or not at all. The name of the owner is that of the work, not of
    the try: a drain that finds tasks held under it from a try that was killed works those off together with what it
    claims, and locks that try out. So no two drains may share a name.

    Rounds of claim, work and commit follow each other under one lease until nothing is ready: at most `rounds` (None:
    as many as it takes), with `budget` tasks in all, and none begins after the `deadline`. A task without a decision
    comes once in a drain; one that is put back, to be retried or snoozed, comes again when it is due. A failure within
    its task's ttl, which is not noted, counts as no decision where there may be more than one round: else the next
    one would take the task again at once. Under a condition a round has whole identifiers: the tasks of each are in
    one partition, in their order, and behind the first that does not end well none is decided.

    Tasks that got no decision are given back at the end, READY in their old place and the attempt not counted. So
    are all tasks after an error, before it is raised: a try that ends in good order leaves nothing behind that others
    would have to wait a lease for, and that would count as a crash when it lapses. Only a try that cannot speak any
    more, killed or cut off, keeps them until its successor or `expire()` takes them. What earlier rounds committed
    stays.

    `claim` is the fence of a claim: `claim["fence"]` of what a gate returns, with its owner and topic. The drain then
    takes over what that claim holds; LeaseLost if the claim is gone, or a later one of the same name has replaced it.
    Unless `budget` says otherwise it claims no other tasks. What it leaves undecided, and everything after an error,
    stays held under the claim, for its retry or the next task of the DAG.

    `lease` is five minutes, or that of the claim, unless given. `max_failed` limits how many tasks may fail for good: a
    count (an int) or a share of the tasks that ended (a float), see `FailureLimit`. It stops no round. At the end, when
    all decisions are committed, TooManyFailures names the counts and the first errors. Failures that the topic's policy
    retries do not count. After a drain of this owner that was killed, its failures count, too; those of a drain that
    came to its end do not.

    LeaseLost where the lease is gone, or was not extended for two thirds of its length; the Spark jobs are then
    cancelled. TaskQueueError in a session of Spark Connect, before anything is claimed. `dsn` is a DSN or an open
    connection to take one from; None: TASKQ_DSN and the rest of the environment.
    """
    began = time.monotonic()
    context = _context(spark)
    limits = Limits.checked(size, rounds, budget, deadline)
    if isinstance(transform, Composite):
        transform = by_composite(transform)
    # Executors of a local master inherit the driver's environment, which therefore is no choice of theirs.
    local = (context.master or "").split("[")[0] == "local"
    route = Route.found(dsn, executors_choose=not local)
    limit = FailureLimit.of(max_failed)
    holding = Holding.registered(spark, route, topic, owner, lease, condition, in_rounds=rounds != 1, claim=claim)
    tally, missed = Tally(), 0
    with holding.kept() as drain_lease, holding.given_back_on_error(drain_lease):
        since = holding.begin()
        holding.free_lapsed()
        if claim is not None and budget is None:
            limits = replace(limits, budget=holding.resumed())
        while (ended := limits.reached(tally)) is None:
            before = Progress(topic, owner, tally.rounds, tally.worked, tally.done, time.monotonic() - began)
            if count := _claimed(holding, limits.room(tally), order, tally):
                missed = 0
                _round(holding, transform, count, partitions, drain_lease, before, on_progress, tally)
            elif _may_look_again(holding, missed := missed + 1):
                time.sleep(AGAIN)  # nothing tells when the other has done with it
            else:
                _tell_none(holding, tally)
                ended = Ended.EMPTY
                break
        result, failure = _end(holding, tally, ended, began, since, limit)
    logger.info("drain report: %s", json.dumps(result.report()))
    if failure is not None:
        raise failure
    return result


def _context(spark: SparkSession) -> SparkContext:
    """The SparkContext, by which Spark jobs are described and cancelled; TaskQueueError where there is none."""
    context: SparkContext | None = getattr(spark, "sparkContext", None)
    if context is None:
        raise TaskQueueError(
            "drain cannot work through Spark Connect, which has no SparkContext to describe and cancel Spark jobs by:"
            " drain in a session of the driver's own, or claim with TaskQueue, read mode=held and write mode=complete"
        )
    return context


def _claimed(holding: Holding, room: int, order: Order, tally: Tally) -> int:
    """What there is to work on in this round: what the name held already, in the first, and what is claimed."""
    if tally.rounds:
        holding.lay_aside()
    resumed = 0 if tally.rounds else holding.resumed()
    claimed = holding.claim(max(0, room - resumed), order)
    tally.claimed += claimed
    tally.resumed += resumed
    if claimed + resumed:
        logger.info(CLAIMED, f"{claimed:,}", holding.topic, f"{resumed:,}")
    return claimed + resumed


def _may_look_again(holding: Holding, missed: int) -> bool:
    """Whether there is something to claim that this many claims in a row have missed, and are not to leave yet."""
    if not holding.has_missed():
        return False
    if missed <= LOOKS:
        return True
    logger.warning("what is ready in topic %s is left: a transaction that stays open keeps it", holding.topic)
    return False


def _tell_none(holding: Holding, tally: Tally) -> None:
    """Says that there was nothing to do, where no round has said otherwise."""
    if not tally.rounds:
        logger.info(CLAIMED, 0, holding.topic, 0)


def _round(
    holding: Holding, transform: Transform, count: int, partitions: int | None, drain_lease: DrainLease,
    before: Progress, on_progress: OnProgress | None, tally: Tally,
) -> None:  # fmt: skip
    """Works on what was claimed, commits it, and counts it."""
    stage = holding.open_stage()
    description = f"taskq: decide {count:,} tasks of topic {holding.topic} for {holding.lease.name}"
    if before.round:
        description += f" (round {before.round + 1}; {before.done:,} of {before.claimed:,} are done)"
    began = time.monotonic()
    with Watch(holding.route, before, count, stage, on_progress), holding.described(description):
        holding.decide(transform, stage, count, partitions, drain_lease)
    holding.landed(stage, tally)
    tally.rounds += 1
    seconds = before.seconds + time.monotonic() - began
    told(Progress(before.topic, before.owner, tally.rounds, tally.worked, tally.done, seconds), on_progress)


def _end(
    holding: Holding, tally: Tally, ended: Ended, began: float, since: datetime, limit: FailureLimit | None
) -> tuple[DrainResult, TooManyFailures | None]:
    """Gives back what is undecided and stores the report, in one transaction; returns what `max_failed` forbids."""
    topic, lease = holding.topic, holding.lease
    with holding.route.connect() as conn:
        queue = TaskQueue(conn)
        counts = queue.drain_counts(topic, lease.name, since)
        failure = limit.exceeded(topic, counts) if limit else None
        undecided = holding.give_back(queue)
        result = DrainResult(
            topic, lease.name, tally.claimed, tally.resumed, tally.done, tally.completed, undecided,
            time.monotonic() - began, tally.rounds, tally.pushed, ended, counts.failed,
        )  # fmt: skip
        outcome = {"claim": holding.claim_fence, "failure": None if failure is None else str(failure)}
        queue.end_drain(lease.name, {**result.report(), **outcome}, lease)
    return result, failure


class _CallableModule(ModuleType):
    """A module that can be called: it hides the function of the same name in the package if it is imported first."""

    def __call__(self, *arguments: Any, **options: Any) -> DrainResult:
        return drain(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
