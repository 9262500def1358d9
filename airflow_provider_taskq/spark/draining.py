"""Drain: claim on the driver, keep the lease, turn tasks into decisions on the cluster, commit them all at once."""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import psycopg
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_taskq.queue import Condition, LeaseLost, Order, Owner, Result, TaskQueue, TaskQueueError
from airflow_provider_taskq.queue.errors import translated
from airflow_provider_taskq.spark.failure import own_error
from airflow_provider_taskq.spark.lease import LeaseKeeper
from airflow_provider_taskq.spark.route import Route
from airflow_provider_taskq.spark.source import TaskQDataSource
from airflow_provider_taskq.spark.staging import abandon_stage, open_stage

logger = logging.getLogger(__name__)

FIVE_MINUTES = timedelta(minutes=5)
ALL = 2**31 - 1
SLICE = 50_000  # tasks a partition at most: what a failed Spark task has to do again

Transform = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class DrainResult:
    """What a drain did. `done` is the number of tasks decided, `undecided` of those given back without a decision."""

    topic: str
    owner: str
    claimed: int
    resumed: int
    done: int
    completed: Mapping[Result, int]
    undecided: int
    seconds: float

    @property
    def rate(self) -> float:
        """Tasks decided per second, from registration to release."""
        return self.done / self.seconds if self.seconds else 0.0


def drain(
    spark: SparkSession,
    topic: str,
    owner: str,
    transform: Transform,
    *,
    dsn: str | psycopg.Connection[Any] | None = None,
    lease: timedelta = FIVE_MINUTES,
    size: int | None = None,
    order: Order = Order.FIRST_IN_FIRST_OUT,
    condition: Condition = Condition.NONE,
    partitions: int | None = None,
) -> DrainResult:
    """Works off up to `size` tasks of a topic (None: all that are ready) through a DataFrame, exactly once.

    `transform` takes the tasks (sequence, topic, identifier, payload, ...; see `TaskQDataSource`) and returns decisions
    (sequence, result, and if wanted message, error, delay). They land all together, or not at all. The name of the
    owner is that of the work, not of the try: a drain that finds tasks held under it from a try that was killed works
    those off together with what it claims, and locks that try out. So no two drains may share a name.

    Tasks that got no decision are given back at the end, READY in their old place and the attempt not counted. So
    are all tasks after an error, before it is raised: a try that ends in good order leaves nothing behind that others
    would have to wait a lease for, and that would count as a crash when it lapses. Only a try that cannot speak any
    more, killed or cut off, keeps them until its successor or `expire()` takes them.

    LeaseLost where the lease is gone, or was not extended for two thirds of its length; the Spark jobs are then
    cancelled. `dsn` is a DSN or an open connection to take one from; None: TASKQ_DSN and the rest of the environment.
    """
    began = time.monotonic()
    # Executors of a local master inherit the driver's environment, which therefore is no choice of theirs.
    local = (spark.sparkContext.master or "").split("[")[0] == "local"
    route = Route.found(dsn, executors_choose=not local)
    held = _Held(spark, route, topic, owner, _registered(route, owner, lease))
    done, completed = 0, dict[Result, int]()
    with LeaseKeeper(held.lease, route, held.cancel) as keeper, held.given_back_on_error(keeper):
        claimed, resumed = held.claim(size, order, condition)
        logger.info("claimed %s tasks of topic %s, %s more were held already", f"{claimed:,}", topic, f"{resumed:,}")
        if claimed + resumed:
            stage = held.decide(transform, claimed + resumed, partitions, keeper)
            done, completed = held.results(stage)
        undecided = held.give_back()
    result = DrainResult(topic, owner, claimed, resumed, done, completed, undecided, time.monotonic() - began)
    logger.info(
        "decided %s tasks in %.1f s, %s a second: %s; gave back %s undecided",
        f"{done:,}",
        result.seconds,
        f"{result.rate:,.0f}",
        ", ".join(f"{count:,} {kind.name}" for kind, count in completed.items()) or "none",
        f"{undecided:,}",
    )
    return result


class _Held:
    """The tasks that one drain holds, and what it does with them, step by step."""

    def __init__(self, spark: SparkSession, route: Route, topic: str, name: str, lease: Owner) -> None:
        self.spark = spark
        self.route = route
        self.topic = topic
        self.name = name
        self.lease = lease
        self.tag = f"taskq-drain-{lease.fence}"
        self.options = {"topic": topic, "owner": lease.name, "fence": str(lease.fence)}

    def claim(self, size: int | None, order: Order, condition: Condition) -> tuple[int, int]:
        """Claims up to the size, counting what the name holds already; returns how many are new and how many not."""
        with self.route.connect() as conn:
            resumed = self._count(conn) if self.lease.resumed else 0
            room = ALL if size is None else max(0, size - resumed)
            return TaskQueue(conn).claim(self.topic, self.lease, room, order, condition), resumed

    def decide(self, transform: Transform, count: int, partitions: int | None, keeper: LeaseKeeper) -> str:
        """Runs the transform and lands its decisions; returns the stage that they went through."""
        wanted = partitions or max(self.spark.sparkContext.defaultParallelism, math.ceil(count / SLICE))
        with self.route.connect() as conn:
            stage = open_stage(conn, self.lease.name, self.lease.fence)
        with self._described(f"taskq: decide {count:,} tasks of topic {self.topic} for {self.name}"):
            source = registered_name(self.spark, self.route)
            reader = self.spark.read.format(source).options(mode="held", partitions=str(wanted), **self.options)
            decisions: object = transform(reader.load())
            if keeper.lost is not None:
                raise keeper.lost
            if not isinstance(decisions, DataFrame):
                kind = type(decisions).__name__
                raise TaskQueueError(f"the transform returned a {kind}, not a DataFrame of decisions")
            writer = decisions.write.format(source).mode("append").options(**self.options)
            writer.options(mode="complete", stage=stage).save()
        return stage

    def results(self, stage: str) -> tuple[int, dict[Result, int]]:
        """How many tasks the stage ended, in all and by result."""
        with self.route.connect() as conn, translated():
            row = conn.execute(
                "SELECT taskq.complete_staged(%s::text, %s::bigint, %s::uuid, '{}', '{}', '{}')",
                (self.lease.name, self.lease.fence, stage),  # committed already: it only tells
            ).fetchone()
            by_result = conn.execute("SELECT result, count FROM taskq.stage_results(%s::uuid)", (stage,)).fetchall()
            abandon_stage(conn, stage)
        return (row[0] if row else 0), {Result(result): count for result, count in by_result}

    def give_back(self) -> int:
        """Ends the lease; returns how many tasks were still held under it."""
        with self.route.connect() as conn:
            return TaskQueue(conn).release(self.lease)

    def cancel(self) -> None:
        """Stops this drain's Spark jobs. From any thread: SparkSession.interruptTag knows only its own."""
        self.spark.sparkContext.cancelJobsWithTag(self.tag)

    @contextmanager
    def given_back_on_error(self, keeper: LeaseKeeper) -> Iterator[None]:
        """After an error gives back what is held, and raises the error as the queue's own where it is one."""
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Exception):  # an interrupt, from which the Spark jobs know nothing
                threading.Thread(target=self.cancel, daemon=True).start()
            if keeper.lost is not None:
                raise LeaseLost(str(keeper.lost)) from error
            with suppress(psycopg.Error, TaskQueueError):  # the error that is being raised says more
                count = self.give_back()
                logger.info("gave back %s tasks after an error", f"{count:,}")
            own = own_error(error)
            if own is None or own is error:
                raise
            raise own from error

    @contextmanager
    def _described(self, description: str) -> Iterator[None]:
        """Marks this thread's Spark jobs: with a description for people, and with a tag to cancel them by."""
        context = self.spark.sparkContext
        before = context.getLocalProperty("spark.job.description")
        context.setJobDescription(description)
        context.addJobTag(self.tag)
        try:
            yield
        except Exception:
            # A JVM that is gone has nothing to say that the error under way does not say better.
            with suppress(Exception):
                self._undescribe(before)
            raise
        self._undescribe(before)

    def _undescribe(self, before: str | None) -> None:
        """Takes the marks off. Not after a KeyboardInterrupt: this thread's call to the JVM is still under way then."""
        context = self.spark.sparkContext
        context.removeJobTag(self.tag)
        context.setLocalProperty("spark.job.description", cast("str", before))  # None removes it

    def _count(self, conn: psycopg.Connection[Any]) -> int:
        """How many tasks of the topic are held."""
        with translated():
            row = conn.execute(
                "SELECT coalesce(sum(size), 0)::bigint FROM taskq.held_bounds(%s::text, %s::bigint, %s::text, 1)",
                (self.lease.name, self.lease.fence, self.topic),
            ).fetchone()
        return row[0] if row else 0


def _registered(route: Route, owner: str, lease: timedelta) -> Owner:
    """Registers the owner under a new fence; after that, so that it keeps its own, frees what others let lapse."""
    with route.connect() as conn:
        queue = TaskQueue(conn)
        registered = queue.register(owner, lease)
        conn.commit()
        queue.expire()
        return registered


_routes: list[Route] = []


def registered_name(spark: SparkSession, route: Route) -> str:
    """Registers the data source on this route under a name of its own, and returns the name.

    So drains to different databases in one session don't take each other's, and the session's own `taskq` stays.
    """
    if route not in _routes:
        _routes.append(route)
    name = f"taskq_drain_{_routes.index(route) + 1}"
    spark.dataSource.register(TaskQDataSource.bound(route, name))
    return name
