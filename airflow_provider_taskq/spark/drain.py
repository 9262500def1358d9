"""The function `drain`: claims tasks on the driver, decides them on the cluster, and commits all decisions at once."""

import json
import logging
import runpy
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from types import ModuleType
from typing import Any

if __name__ == "__main__":  # `python -m airflow_provider_taskq.spark.drain` runs the program of application.py
    runpy.run_module("airflow_provider_taskq.spark.application", run_name="__main__")

import psycopg
from pyspark.sql import SparkSession

from airflow_provider_taskq.queue import (
    Condition,
    FailureLimit,
    InvalidArgument,
    MaxFailed,
    Order,
    Result,
    TaskQueueError,
    TooManyFailures,
    TooManyUndecided,
)
from airflow_provider_taskq.queue.arguments import DurationLike, to_integer, to_timedelta
from airflow_provider_taskq.queue.drains import parse_max_undecided
from airflow_provider_taskq.queue.jobs import StageReport
from airflow_provider_taskq.spark.claimer import ClaimAhead
from airflow_provider_taskq.spark.composite import transform_of
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.lease import DrainLease
from airflow_provider_taskq.spark.progress import DrainProgress, OnProgress, ProgressReporter, report_progress
from airflow_provider_taskq.spark.session import DrainSession
from airflow_provider_taskq.spark.transforms import FrameFunction, Transform
from airflow_provider_taskq.worker.batches import BatchContext, BatchOwner
from airflow_provider_taskq.worker.composite import Composite

logger = logging.getLogger(__name__)

NO_LIMIT = 2**31 - 1
NO_DEADLINE = datetime.max.replace(tzinfo=UTC)
CLAIM_PAUSE = 0.2  # seconds until a claim is repeated that found nothing because of concurrent polls
MAX_EMPTY_CLAIMS = 50  # the most such claims in a drain
_CLAIMED = "tasks claimed: topic=%s claimed=%s resumed=%s"


class StopReason(StrEnum):
    """The reason why a drain started no further round."""

    EMPTY = "EMPTY"  # no task was ready
    ROUNDS = "ROUNDS"  # the limit of rounds was reached
    BUDGET = "BUDGET"  # the limit of tasks was reached
    DEADLINE = "DEADLINE"  # the deadline had passed


@dataclass(slots=True)
class DrainTotals:
    """The sums of all rounds so far. `isolating` counts the rounds that had some of the tasks of a crash."""

    rounds: int = 0
    isolating: int = 0
    claimed: int = 0
    resumed: int = 0
    done: int = 0
    pushed: int = 0
    returned: int = 0
    completed: dict[Result, int] = field(default_factory=dict)

    @property
    def processed(self) -> int:
        """The number of tasks of all rounds, claimed or resumed."""
        return self.claimed + self.resumed

    @property
    def undecided(self) -> int:
        """The number of tasks for which the transform made no decision."""
        return self.processed - self.done - self.returned

    def add(self, committed: StageReport) -> None:
        """Add the counts of the stage of a round."""
        self.done += committed.completed or 0
        self.pushed += committed.pushed or 0
        self.returned += committed.returned or 0
        for result, count in committed.by_result.items():
            self.completed[result] = self.completed.get(result, 0) + count


@dataclass(frozen=True, slots=True)
class DrainLimits:
    """The limits of a drain: tasks in a round, rounds, tasks in all rounds, and the deadline."""

    size: int
    rounds: int
    budget: int
    until: datetime

    @classmethod
    def of(
        cls, size: int | None, rounds: int | None, budget: int | None, deadline: DurationLike | datetime | None
    ) -> "DrainLimits":
        """Check the limits. None is no limit. A duration as deadline begins now. Raises TaskQueueError."""
        size, rounds, budget = (
            NO_LIMIT if given is None else to_integer(given, name, 1)
            for name, given in (("size", size), ("rounds", rounds), ("budget", budget))
        )
        if deadline is not None and not isinstance(deadline, datetime):
            deadline = datetime.now(UTC) + to_timedelta(deadline, "deadline")
        if deadline is not None and deadline.tzinfo is None:
            raise InvalidArgument("deadline must have a time zone, or its meaning depends on the driver's machine")
        return cls(size, rounds, budget, deadline or NO_DEADLINE)

    def reached(self, totals: DrainTotals) -> StopReason | None:
        """Return the limit that prevents another round; None if no limit does."""
        if totals.rounds - totals.isolating >= self.rounds:
            return StopReason.ROUNDS
        if totals.processed >= self.budget:
            return StopReason.BUDGET
        return StopReason.DEADLINE if datetime.now(UTC) >= self.until else None

    def next_size(self, totals: DrainTotals) -> int:
        """Return the maximum number of tasks in the next round."""
        return min(self.size, self.budget - totals.processed)


@dataclass(frozen=True, slots=True)
class DrainResult:
    """The numbers of tasks of a drain, its length in seconds, and the reason why it ended.

    `claimed` counts the tasks that the drain claimed, and `resumed` those that the owner held before. `done` counts the
    decided tasks, and `completed` the same by result. `undecided` counts the tasks for which the transform returned
    UNDECIDED or no row. `returned` counts the tasks whose decisions had no effect, so that they come back: behind a
    task that blocks their identifier, and if there may be more rounds, after a failure within their ttl or a snooze of
    less than a second. `pushed` counts the new tasks of follow-ups. `failed` counts the tasks that are FAILED now: it
    includes those of a killed drain of this owner, and excludes those that the topic's policy retries.
    """

    topic: str
    owner: str
    claimed: int
    resumed: int
    done: int
    completed: Mapping[Result, int]
    failed: int
    pushed: int
    undecided: int
    returned: int
    rounds: int
    stop_reason: StopReason
    seconds: float

    @property
    def rate(self) -> float:
        """The number of tasks decided per second, from the start of the drain to its end."""
        return self.done / self.seconds if self.seconds else 0.0

    def report(self) -> dict[str, Any]:
        """Return the result as JSON. The drain stores and logs it, and TaskQSparkSubmitOperator returns it."""
        completed = {result.name: count for result, count in self.completed.items()}
        report = {**asdict(self), "completed": completed, "seconds": round(self.seconds, 3)}
        return {"decided" if name == "done" else name: value for name, value in report.items()}


def drain(
    spark: SparkSession,
    topic: str,
    owner: str,
    transform: FrameFunction | Composite,
    *,
    options: Mapping[str, str] | None = None,
    dsn: str | psycopg.Connection[Any] | None = None,
    claim: int | None = None,
    lease: DurationLike | None = None,
    size: int | None = None,
    order: Order = Order.FIRST_IN_FIRST_OUT,
    condition: Condition = Condition.NONE,
    partitions: int | None = None,
    rounds: int | None = 1,
    budget: int | None = None,
    deadline: DurationLike | datetime | None = None,
    max_failed: MaxFailed = None,
    max_undecided: int | None = 0,
    on_progress: OnProgress | None = None,
) -> DrainResult:
    """Process the ready tasks of a topic through a DataFrame, exactly once, and return the numbers of tasks.

    A drain repeats rounds under one lease until no task is ready. A round claims tasks, calls `transform`, and commits
    all decisions with their follow-ups, or none. A task without a decision comes once in a drain. A task that is
    retried or snoozed comes again when it is due. If there may be more rounds, a failure within a task's ttl and a
    snooze of less than a second have no effect, because the next round would claim the task immediately. While a round
    works, the drain claims the tasks of the next one, unless it has a condition, a claim or LAST_IN_FIRST_OUT.

    At the end the drain releases the tasks that it still holds: they are READY in their old place, and the attempt does
    not count. After an error it releases all held tasks, and raises the error. If the driver is killed, the tasks stay
    held until its successor or `expire()` releases them. Rounds that have committed stay committed.

    If a task kills processes of executors, the drain fails, and its tasks have had a crash. The next drains claim these
    tasks in smaller rounds until the cause is alone, and is FAILED: see docs/concepts/leases.md. So a drain needs about
    `max_crashes` retries. A drain of a claim counts no crash: its tasks stay in one round.

    :param transform: a function that gets the tasks (see `TaskQDataSource`) and returns decisions: sequence, result,
        and optionally message, error, delay and follow-ups (see follow_ups.py). `in_arrow`, `in_pandas` and `by_task`
        return a transform. It may also be a composite, whose steps executors run (see `by_composite`).
    :param options: what a function gets that has a parameter `options`; the steps of a composite do not get it.
    :param owner: the name of the work. A retry has the same name: it releases the tasks that a killed attempt has
        held, and locks that attempt out. Two concurrent drains need different names.
    :param dsn: a DSN, or an open connection whose parameters to use; None for TASKQ_DSN and the environment. Name
        several hosts in a DSN: an open connection has only the address that it reached.
    :param claim: the fence of a claim: `claim["fence"]` of the value that a gate returns, with its owner and topic. The
        drain takes over the tasks of that claim, and claims others only if `budget` allows more. Undecided tasks, and
        after an error all tasks, stay held under the claim, for its retry or the next task of the DAG.
    :param lease: the length of the lease; None for five minutes, or for the length that the claim has.
    :param size: the most tasks in a round; None for no limit.
    :param condition: under a condition, a round has whole identifiers. The tasks of an identifier are in one partition
        in their order, and no task is decided after one that blocks its identifier.
    :param partitions: the number of partitions of the tasks; None to compute it from cores and tasks.
    :param rounds: the most rounds; None for no limit. Rounds of tasks that have had a crash do not count, because each
        has only some of them.
    :param budget: the most tasks in all rounds; None for no limit, or with `claim` for the tasks of the claim.
    :param deadline: no round begins after it: a duration from the start, or a datetime with a time zone.
    :param max_failed: how many tasks may fail for good, as a count (int) or a share of the ended tasks (float): see
        `FailureLimit`. It stops no round. Failures of an earlier drain of this owner count if that drain was killed.
    :param max_undecided: how many tasks may be undecided, including rows that the transform leaves out; None for no
        limit.
    :param on_progress: a function that gets a DrainProgress every few seconds, and after each round.
    :raises LeaseLost: if the claim is gone, if a later one of the same name has replaced it, or if the lease was not
        extended for two thirds of its length. The Spark jobs are then cancelled.
    :raises TooManyFailures: after all commits, if more tasks failed than `max_failed` allows.
    :raises TooManyUndecided: after all commits, if more tasks are undecided than `max_undecided` allows.
    :raises TaskQueueError: for an invalid argument, before the drain claims tasks.
    """
    began = time.monotonic()
    limits = DrainLimits.of(size, rounds, budget, deadline)
    failure_limit, max_undecided = FailureLimit.of(max_failed), parse_max_undecided(max_undecided)
    work = replace(transform_of(transform), condition=condition, options=options or {})
    # Executors of a local master inherit the driver's environment, so a TASKQ_DSN there is not their own.
    local = str(spark.conf.get("spark.master", "")).split("[")[0] == "local"
    info = ConnectionInfo.resolve(dsn, executors_may_override=not local)
    session = DrainSession.open(spark, info, topic, owner, lease, condition, in_rounds=rounds != 1, claim=claim)
    with session.keep_lease() as drain_lease, session.release_on_error(drain_lease):
        with info.queue(autocommit=True) as queue:
            since = queue.begin_drain(owner, topic, session.lease)
            queue.expire(topic=topic)  # the first claim finds the tasks of the lapsed leases of others
        drain_lease.start_upkeep()  # after the expiry, which would skip leases that another session is ending
        if claim is not None and budget is None:
            limits = replace(limits, budget=session.count_resumed())
        loop = DrainLoop(session, drain_lease, work, limits, order, partitions, on_progress, began)
        stop_reason = loop.run()
        failure: TaskQueueError | None
        result, failure = loop.finish(stop_reason, since, failure_limit)
    logger.info("drain report: %s", json.dumps(result.report()))
    if result.undecided:
        logger.warning("drain left undecided tasks: topic=%s tasks=%s", topic, result.undecided)
    if failure := failure or TooManyUndecided.check(topic, result.undecided, max_undecided):
        raise failure
    return result


@dataclass(slots=True)
class DrainLoop:
    """The rounds of one drain, each of which claims tasks, transforms them and commits the decisions.

    While a round works, a thread claims the tasks of the next round. They are held, too, but they were claimed after
    `until`, so the current round neither reads nor defers them.

    :param began: when the drain began, by `time.monotonic()`.
    """

    session: DrainSession
    lease: DrainLease
    transform: Transform
    limits: DrainLimits
    order: Order
    partitions: int | None
    on_progress: OnProgress | None
    began: float
    totals: DrainTotals = field(default_factory=DrainTotals)
    ahead: ClaimAhead | None = None
    until: datetime | None = None

    def run(self) -> StopReason:
        """Repeat rounds until no task is ready or a limit is reached, and return the reason."""
        try:
            return self._run_rounds()
        except BaseException:
            if self.ahead is not None:  # before the drain releases its tasks
                self.ahead.cancel()
            raise

    def _run_rounds(self) -> StopReason:
        empty_claims = 0
        while (stop_reason := self.limits.reached(self.totals)) is None:
            before = self._progress()
            if count := self._claim():
                self._run_round(count, before)
            elif self._may_claim_again(empty_claims := empty_claims + 1):
                time.sleep(CLAIM_PAUSE)  # no event reports the end of the concurrent poll
            else:
                if not self.totals.rounds:
                    logger.info(_CLAIMED, self.session.topic, 0, 0)
                return StopReason.EMPTY
        if self.ahead is not None:  # the deadline has passed
            self.ahead.stop()
        return stop_reason

    def _claim(self) -> int:
        """Claim the tasks of a round, and return their number. The first round has the resumed tasks too."""
        session, totals = self.session, self.totals
        claimed = self.ahead.result() if self.ahead is not None else 0
        self.ahead = None
        resumed = 0 if totals.rounds else session.count_resumed()
        if totals.rounds:  # those without a decision come once
            with session.connection_info.queue() as queue:
                queue.defer_held(session.lease, self.until)
        claimed += session.claim(max(0, self.limits.next_size(totals) - resumed - claimed), self.order)
        totals.claimed += claimed
        totals.resumed += resumed
        if claimed + resumed:
            logger.info(_CLAIMED, session.topic, claimed, resumed)
        return claimed + resumed

    def _claim_ahead(self, now: datetime) -> None:
        """Begin to claim the tasks of the next round, unless a limit prevents it."""
        following = replace(self.totals, rounds=self.totals.rounds + 1)
        if self.limits.reached(following) is None:
            self.ahead = self.session.claim_ahead(self.limits.next_size(following), self.order)
        self.until = None if self.ahead is None else now

    def _may_claim_again(self, empty_claims: int) -> bool:
        """Return whether to repeat a claim that found nothing because concurrent polls hid tasks from it."""
        # A claim under a condition skips the identifiers that a concurrent poll examines. That poll may leave them too,
        # if it began before the previous task of the identifier was completed.
        session = self.session
        if not session.in_rounds or session.condition is Condition.NONE:
            return False
        with session.connection_info.queue() as queue:
            unclaimed = queue.has_unclaimed(session.topic, session.condition)
        if unclaimed and empty_claims > MAX_EMPTY_CLAIMS:
            logger.warning("ready tasks are left, an open transaction locks them: topic=%s", session.topic)
        return unclaimed and empty_claims <= MAX_EMPTY_CLAIMS

    def _run_round(self, count: int, before: DrainProgress) -> None:
        session = self.session
        with session.connection_info.queue() as queue:
            self.totals.isolating += queue.max_claim(session.lease) is not None
            stage, now = queue.open_stage(session.key, session.condition, in_rounds=session.in_rounds)
            batch = BatchContext(BatchOwner(session.lease.name, queue.draw_fence(session.lease)))
        self._claim_ahead(now)
        description = f"taskq: decide {count:,} tasks of topic {session.topic} for {session.lease.name}"
        if before.round:
            description += f" (round {before.round + 1}; {before.done:,} of {before.claimed:,} are done)"
        with (
            ProgressReporter(session.connection_info, before, count, stage, self.on_progress),
            session.jobs.described(description),
        ):
            session.run_transform(
                replace(self.transform, batch=batch), stage, count, self.partitions, self.lease, self.until
            )
        with session.connection_info.queue() as queue:
            self.totals.add(queue.close_stage(stage))
        self.totals.rounds += 1
        report_progress(self._progress(), self.on_progress)

    def _progress(self) -> DrainProgress:
        totals, seconds = self.totals, time.monotonic() - self.began
        return DrainProgress(
            self.session.topic, self.session.lease.name, totals.rounds, totals.processed, totals.done, seconds
        )

    def finish(
        self, stop_reason: StopReason, since: datetime, failure_limit: FailureLimit | None
    ) -> tuple[DrainResult, TooManyFailures | None]:
        """Release the tasks that are still held, and store the report, in one transaction.

        Return the result, and the error of `max_failed` if too many tasks have failed.
        """
        session, totals = self.session, self.totals
        topic, owner = session.topic, session.lease.name
        with session.connection_info.queue() as queue:
            counts = queue.drain_counts(topic, owner, since)
            failure = failure_limit.exceeded(topic, counts) if failure_limit else None
            session.release(queue)
            result = DrainResult(
                topic=topic,
                owner=owner,
                undecided=totals.undecided,
                seconds=time.monotonic() - self.began,
                stop_reason=stop_reason,
                failed=counts.failed,
                **{name: number for name, number in asdict(totals).items() if name != "isolating"},
            )
            outcome = {"claim": session.claim_fence, "failure": None if failure is None else str(failure)}
            queue.end_drain(owner, {**result.report(), **outcome}, session.lease)
        return result, failure


# The package's function `drain` and the program `python -m airflow_provider_taskq.spark.drain` have one name. If a
# program imports this module first, Python binds the package's name `drain` to the module. So the module is callable.
class _CallableModule(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> DrainResult:
        return drain(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
