"""What one drain holds, and what it does with it, step by step."""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import cast

import psycopg
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.readwriter import DataFrameReader

from airflow_provider_taskq.queue import Condition, LeaseLost, Order, Owner, Result, TaskQueue, TaskQueueError
from airflow_provider_taskq.queue.errors import translate_errors
from airflow_provider_taskq.spark.claimer import Claiming
from airflow_provider_taskq.spark.composite import ByComposite
from airflow_provider_taskq.spark.connection import Route
from airflow_provider_taskq.spark.drain_source import composite_format, registered_name
from airflow_provider_taskq.spark.errors import own_error
from airflow_provider_taskq.spark.lease import DrainLease
from airflow_provider_taskq.spark.limits import Tally
from airflow_provider_taskq.spark.transforms import OF_A_TASK, ByTask
from airflow_provider_taskq.spark.writers import abandon_stage

logger = logging.getLogger(__name__)

SLICE = 50_000  # tasks a partition at most: what a failed Spark task has to do again
FIVE_MINUTES = timedelta(minutes=5)
FEW = 10_000  # the same where a function is called for each: it is called again as well

Transform = Callable[[DataFrame], DataFrame]


class Holding:
    """The tasks that one drain holds under its lease.

    `in_rounds`: there may be more rounds than one. `since`: when the registration began, by the monotonic clock.
    `claim`: the fence of the claim that this drain continues. It neither gives the tasks of a claim back nor ends its
    lease: they belong to the DAG, whose next task, or the retry of this one, takes them over by the same fence.
    """

    def __init__(
        self,
        spark: SparkSession,
        route: Route,
        topic: str,
        lease: Owner,
        condition: Condition,
        *,
        in_rounds: bool,
        since: float,
        claim: int | None = None,
    ) -> None:
        self.spark = spark
        self.route = route
        self.topic = topic
        self.lease = lease
        self.condition = condition
        self.in_rounds = in_rounds
        self.since = since
        self.claim_fence = claim
        self.tag = f"taskq-drain-{lease.fence}"
        self.options = {"topic": topic, "owner": lease.name, "fence": str(lease.fence)}

    @classmethod
    def registered(
        cls,
        spark: SparkSession,
        route: Route,
        topic: str,
        owner: str,
        lease: timedelta | None,
        condition: Condition,
        *,
        in_rounds: bool,
        claim: int | None = None,
    ) -> "Holding":
        """Registers the owner under a new fence; with `claim` only if it holds that claim, whose lease it keeps."""
        with route.connect() as conn:
            queue, since = TaskQueue(conn), time.monotonic()
            if claim is None:
                registered = queue.register(owner, lease or FIVE_MINUTES)
            else:
                current = queue.owner(owner, claim)
                registered = queue.take_over(owner, claim, lease or (current.lease if current else FIVE_MINUTES))
        return cls(spark, route, topic, registered, condition, in_rounds=in_rounds, since=since, claim=claim)

    def kept(self) -> DrainLease:
        """What keeps the lease, and stops this drain's Spark jobs where it is lost."""
        return DrainLease(self.lease, self.route, self.cancel, self.since)

    def begin(self) -> datetime:
        """Stores that the drain begins; returns the moment from which its failures count."""
        with self.route.connect() as conn:
            return TaskQueue(conn).begin_drain(self.lease.name, self.topic, self.lease)

    def free_lapsed(self) -> None:
        """Frees what others let lapse: after the registration, which keeps the owner's own, and under a kept lease."""
        with self.route.connect() as conn:
            TaskQueue(conn).expire()

    def resumed(self) -> int:
        """How many tasks of the topic the name held already."""
        if not self.lease.resumed:
            return 0
        with self.route.connect() as conn, translate_errors():
            row = conn.execute(
                "SELECT coalesce(sum(size), 0)::bigint FROM taskq.held_bounds(%s::text, %s::bigint, %s::text, 1)",
                (self.lease.name, self.lease.fence, self.topic),
            ).fetchone()
        return row[0] if row else 0

    def claim(self, size: int, order: Order) -> int:
        """Claims up to so many tasks, and returns how many: under a condition whole identifiers, in their order."""
        if self.condition is Condition.NONE:
            claimer = Claiming(self.route, self.topic, self.lease, order, size)
            return claimer.claim(self.spark.sparkContext.defaultParallelism)
        with self.route.connect(autocommit=True) as conn:
            if order is not Order.FIRST_IN_FIRST_OUT:  # the last of an identifier alone, as its others come before
                return TaskQueue(conn).claim(self.topic, self.lease, size, order, self.condition)
            with translate_errors():
                row = conn.execute(
                    "SELECT taskq.claim_batch(%s::text, %s::text, %s::bigint, %s::int, %s::text)",
                    (self.topic, self.lease.name, self.lease.fence, size, self.condition),
                ).fetchone()
            return row[0] if row else 0

    def has_missed(self) -> bool:
        """Whether a further round could claim something, though this one has just found nothing.

        A claim under a condition leaves out what a poll looks at just then, which may take nothing of it: it began
        before the last task of that identifier was completed.
        """
        if not self.in_rounds or self.condition is Condition.NONE:
            return False
        with self.route.connect() as conn:
            return TaskQueue(conn).has_unclaimed(self.topic, self.condition)

    def open_stage(self) -> str:
        """The number of a new stage, which keeps the turns of identifiers under a condition.

        In rounds it leaves failures that are not noted, those within a time to live, for another drain.
        """
        with self.route.connect() as conn, translate_errors():
            row = conn.execute(
                "SELECT taskq.open_stage(%s::text, %s::bigint, %s::text, %s::boolean)::text",
                (self.lease.name, self.lease.fence, self.condition, self.in_rounds),
            ).fetchone()
        assert row is not None  # noqa: S101
        return str(row[0])

    def decide(
        self, transform: Transform, stage: str, count: int, partitions: int | None, drain_lease: DrainLease
    ) -> None:
        """Runs the transform on what is held, and lands its decisions through the stage."""
        source = registered_name(self.spark, self.route)
        wanted = partitions or self._partitions(transform, count)
        reader = self.spark.read.format(source).options(mode="held", partitions=str(wanted), **self.options)
        if isinstance(transform, ByComposite):
            tasks = self._in_turn(reader, wanted, together=True).select(*OF_A_TASK)
            with composite_format(self.spark, self.route, transform.under(self.condition)) as composite:
                self._write(tasks, composite, stage, drain_lease)
            return
        if isinstance(transform, ByTask):
            transform = transform.under(self.condition)
        decisions: object = transform(self._in_turn(reader, wanted, together=False))
        if not isinstance(decisions, DataFrame):
            kind = type(decisions).__name__
            raise TaskQueueError(f"the transform returned a {kind}, not a DataFrame of decisions")
        self._write(decisions, source, stage, drain_lease)

    def _write(self, frame: DataFrame, source: str, stage: str, drain_lease: DrainLease) -> None:
        """Runs the job that stages decisions and commits them, unless the lease is lost already."""
        if drain_lease.lost is not None:
            raise drain_lease.lost
        writer = frame.write.format(source).mode("append").options(**self.options)
        writer.options(mode="complete", stage=stage).save()

    def _in_turn(self, reader: DataFrameReader, partitions: int, *, together: bool) -> DataFrame:
        """The tasks as they are held; `together` and under a condition those of one identifier in one partition.

        Under a condition in turn, otherwise in the order in which a worker would poll them.
        """
        tasks = reader.load()
        if self.condition is Condition.NONE:
            if not together:
                return tasks
            polled = (functions.col("priority").desc(), "available_at", "sequence")
            return tasks.repartition(partitions, "identifier").sortWithinPartitions(*polled)
        begun = functions.col("attempt") > 1  # the same order as in taskq_internal.drop_overtaking_decisions
        return tasks.repartition(partitions, "identifier").sortWithinPartitions(
            functions.col("identifier"),
            begun.desc(),
            functions.when(begun, functions.col("sequence")),
            functions.col("priority").desc(),
            functions.col("available_at"),
            functions.col("sequence"),
        )

    def _partitions(self, transform: Transform, count: int) -> int:
        """By cores and number of tasks; several a core where each task may take its time."""
        cores = self.spark.sparkContext.defaultParallelism
        if isinstance(transform, ByTask | ByComposite):
            return max(cores, min(4 * cores, count), math.ceil(count / FEW))
        return max(cores, math.ceil(count / SLICE))

    def landed(self, stage: str, tally: Tally) -> None:
        """Adds to the tally what a committed stage ended and pushed, wakes who waits for it, and forgets the stage."""
        with self.route.connect() as conn, translate_errors():
            done = conn.execute(
                "SELECT taskq.complete_staged(%s::text, %s::bigint, %s::uuid, '{}', '{}', '{}'),"
                " taskq.count_stage_pushed(%s::uuid)",
                (self.lease.name, self.lease.fence, stage, stage),  # committed already: it only tells
            ).fetchone()
            by_result = conn.execute("SELECT result, count FROM taskq.stage_results(%s::uuid)", (stage,)).fetchall()
            with suppress(psycopg.Error), conn.transaction():  # nothing depends on it
                conn.execute("SELECT taskq.notify_stage_topics(%s::uuid)", (stage,))
            abandon_stage(conn, stage)
        assert done is not None  # noqa: S101
        tally.add(done[0], done[1], {Result(result): count for result, count in by_result})

    def lay_aside(self) -> None:
        """Keeps what is still held, without a decision, from being read in the next round."""
        with self.route.connect() as conn, translate_errors():
            conn.execute("SELECT taskq.defer_held_tasks(%s::text, %s::bigint)", (self.lease.name, self.lease.fence))

    def give_back(self, queue: TaskQueue) -> int:
        """Ends the lease, unless a claim is continued; returns how many tasks were still held under it."""
        if self.claim_fence is None:
            return queue.release(self.lease)
        with translate_errors():
            row = queue.conn.execute(
                "SELECT count(*) FROM taskq.held(%s::text, %s::bigint, %s::text)",
                (self.lease.name, self.lease.fence, self.topic),
            ).fetchone()
        count = row[0] if row else 0
        if count:
            logger.warning("claim of %s: %s undecided tasks stay held, for its next task or TaskQReleaseOperator",
                           self.lease.name, f"{count:,}")  # fmt: skip
        return count

    def cancel(self) -> None:
        """Stops this drain's Spark jobs. From any thread: SparkSession.interruptTag knows only its own."""
        self.spark.sparkContext.cancelJobsWithTag(self.tag)

    @contextmanager
    def given_back_on_error(self, drain_lease: DrainLease) -> Iterator[None]:
        """After an error gives back what is held, and raises the error as the queue's own where it is one."""
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Exception):  # an interrupt, from which the Spark jobs know nothing
                threading.Thread(target=self.cancel, daemon=True).start()
            if drain_lease.lost is not None:
                raise LeaseLost(str(drain_lease.lost)) from error
            with suppress(psycopg.Error, TaskQueueError):  # the error that is being raised says more
                if self.claim_fence is None:
                    with self.route.connect() as conn:
                        logger.info("gave back %s tasks after an error", f"{self.give_back(TaskQueue(conn)):,}")
            own = own_error(error)
            if own is None or own is error:
                raise
            raise own from error

    @contextmanager
    def described(self, description: str) -> Iterator[None]:
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
