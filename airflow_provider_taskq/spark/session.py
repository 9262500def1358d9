"""The session of one drain: its lease, the tasks that it holds, and its Spark jobs."""

import logging
import math
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

import psycopg
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.readwriter import DataFrameReader

from airflow_provider_taskq import queue as queue_package
from airflow_provider_taskq.queue import (
    Condition,
    LeaseLost,
    Order,
    Owner,
    TaskQueue,
    TaskQueueError,
    verify_for_work,
)
from airflow_provider_taskq.queue.arguments import DurationLike
from airflow_provider_taskq.queue.claims import held_sequences
from airflow_provider_taskq.queue.jobs import LeaseKey
from airflow_provider_taskq.spark.claimer import ClaimAhead, ParallelClaimer
from airflow_provider_taskq.spark.composite import CompositeTransform
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.data_source import register_source
from airflow_provider_taskq.spark.jobs import SparkJobs
from airflow_provider_taskq.spark.lease import DrainLease
from airflow_provider_taskq.spark.transforms import TaskwiseTransform, Transform

logger = logging.getLogger(__name__)

# The most tasks in a partition, because a failed Spark task repeats its partition.
PARTITION_TASKS = 50_000
PARTITION_CALLS = 10_000  # if executors call a function for each task
DEFAULT_LEASE = timedelta(minutes=5)

# The last line of a Python trace, as Spark quotes it from a worker.
_QUEUE_ERROR = re.compile(r"airflow_provider_taskq\.queue\.errors\.(\w+): (.+)")
# How Spark says that a process of an executor died.
_PROCESS_DIED = re.compile(r"Python worker exited unexpectedly|ExecutorLostFailure")
# What precedes Spark's own words: the sentence of py4j, the class of an exception, and the sentence on the whole job.
_BEFORE_CAUSE = re.compile(r"^An error occurred while calling \S+\s+: |\(?\b(?:[a-z]\w*\.)+[A-Z]\w*(?:\) |: )")
_LAST_FAILURE = "most recent failure: "
_ANY_ERROR = re.compile(r"^(?!Caused by|\s)(?:[\w]+\.)*(\w*(?:Error|Exception|Exit|Interrupt)): (.+)$", re.MULTILINE)


@dataclass(eq=False)
class DrainSession:
    """The lease of one drain, and the calls to the queue and to Spark that a drain consists of.

    :param in_rounds: whether the drain may have more than one round.
    :param since: when the registration began, by `time.monotonic()`.
    :param claim_fence: the fence of the claim that this drain continues; None if it claims for itself. The drain
        neither releases the tasks of a claim nor ends its lease: the retry of this Airflow task, or the next task of
        the DAG, takes the tasks over by the same fence.
    """

    spark: SparkSession
    connection_info: ConnectionInfo
    topic: str
    lease: Owner
    condition: Condition
    in_rounds: bool
    since: float
    claim_fence: int | None = None

    @classmethod
    def open(
        cls,
        spark: SparkSession,
        connection_info: ConnectionInfo,
        topic: str,
        owner: str,
        lease: DurationLike | None,
        condition: Condition,
        *,
        in_rounds: bool,
        claim: int | None = None,
    ) -> "DrainSession":
        """Register the owner, or with `claim` take over that claim; `lease` is by default 5 minutes or the claim's."""
        with connection_info.queue() as queue:
            verify_for_work(queue.conn)
            since = time.monotonic()
            if claim is None:
                # An earlier attempt that still holds tasks was killed: it would have released them otherwise.
                registered = queue.register(owner, lease or DEFAULT_LEASE, resume=False)
            else:
                current = queue.owner(owner, claim)
                registered = queue.take_over(owner, claim, lease or (current.lease if current else DEFAULT_LEASE))
        return cls(spark, connection_info, topic, registered, condition, in_rounds, since, claim)

    @cached_property
    def jobs(self) -> SparkJobs:
        """The Spark jobs of this drain."""
        return SparkJobs.of(self.spark, f"taskq-drain-{self.lease.fence}")

    @property
    def key(self) -> LeaseKey:
        """The name and the fence of the lease."""
        return self.lease.name, self.lease.fence

    @property
    def options(self) -> dict[str, str]:
        """The options of the data source that name the held tasks."""
        return {"topic": self.topic, "owner": self.lease.name, "fence": str(self.lease.fence)}

    def keep_lease(self) -> DrainLease:
        """Return a context that keeps the lease, and cancels this drain's Spark jobs if the lease is lost."""
        return DrainLease(self.lease, self.connection_info, self.jobs.cancel, self.since)

    def count_resumed(self) -> int:
        """Return the number of tasks of the topic that the owner held before this registration."""
        if not self.lease.resumed:
            return 0
        with self.connection_info.queue() as queue:
            return sum(each.size for each in queue.held_bounds(self.key, self.topic, 1))

    def claim(self, size: int, order: Order) -> int:
        """Claim up to `size` tasks, under a condition whole identifiers in order, and return their number."""
        if self.condition is Condition.NONE:
            return self._claimer(size, order).claim(self.jobs.cores)
        if order is not Order.FIRST_IN_FIRST_OUT:  # the last task of an identifier has to follow all others
            with self.connection_info.queue(autocommit=True) as queue:
                return queue.claim(self.topic, self.lease, size, order, self.condition)
        with self.connection_info.queue() as queue:
            return queue.claim_identifiers(self.topic, self.lease, size, self.condition)

    def claim_ahead(self, size: int, order: Order) -> ClaimAhead | None:
        """Begin to claim up to `size` tasks of the next round; None if the drain may claim none before that round.

        LAST_IN_FIRST_OUT promises the newest tasks when the round begins. Under a condition, a claim leaves out the
        identifiers of the current round, so the next round would lack their later tasks. The tasks of another claim
        belong to the DAG, to which the drain could not give them back.
        """
        if not self.in_rounds or self.condition is not Condition.NONE or self.claim_fence is not None:
            return None
        if order is not Order.FIRST_IN_FIRST_OUT:
            return None
        return ClaimAhead(self._claimer(size, order), self.jobs.cores())

    def _claimer(self, size: int, order: Order) -> ParallelClaimer:
        return ParallelClaimer(self.connection_info, self.topic, self.lease, order, size)

    def run_transform(
        self,
        transform: Transform,
        stage: str,
        count: int,
        partitions: int | None,
        drain_lease: DrainLease,
        until: datetime | None,
    ) -> None:
        """Run the transform on the held tasks, and commit its decisions through the stage.

        With `until`, leave out the tasks that were claimed later.
        """
        source = register_source(self.spark, self.connection_info)
        number = partitions or self._partitions(transform, count)
        reader = self.spark.read.format(source).options(mode="held", partitions=str(number), **self.options)
        if until is not None:
            reader = reader.option("until", until.isoformat())
        decisions = transform(self._ordered_tasks(reader, number, isinstance(transform, CompositeTransform)))
        if drain_lease.lost is not None:
            raise drain_lease.lost
        writer = decisions.write.format(source).mode("append").options(**self.options)
        writer.options(mode="complete", stage=stage).save()

    def _ordered_tasks(self, reader: DataFrameReader, partitions: int, by_identifier: bool) -> DataFrame:
        """Return the held tasks. With `by_identifier` or a condition, each identifier's tasks are in one partition.

        Under a condition they have the order in which the identifier's tasks take turns; else the order of polls.
        """
        tasks = reader.load()
        if self.condition is Condition.NONE:
            if not by_identifier:
                return tasks
            poll_order = (functions.col("priority").desc(), "available_at", "sequence")
            return tasks.repartition(partitions, "identifier").sortWithinPartitions(*poll_order)
        attempted = functions.col("attempt") > 1  # the same order as in taskq_internal.drop_overtaking_decisions
        return tasks.repartition(partitions, "identifier").sortWithinPartitions(
            functions.col("identifier"),
            attempted.desc(),
            functions.when(attempted, functions.col("sequence")),
            functions.col("priority").desc(),
            functions.col("available_at"),
            functions.col("sequence"),
        )

    def _partitions(self, transform: Transform, count: int) -> int:
        cores = self.jobs.cores()
        if isinstance(transform, TaskwiseTransform):
            # Several partitions for each core, because the calls of some partitions may take longer than others.
            return max(cores, min(4 * cores, count), math.ceil(count / PARTITION_CALLS))
        return max(cores, math.ceil(count / PARTITION_TASKS))

    def release(self, queue: TaskQueue, *, crashed: bool = False) -> int:
        """Release the held tasks and end the lease, unless the drain continues a claim. Return the number of tasks."""
        if self.claim_fence is None:
            return queue.release(self.lease, crashed=crashed)
        if count := len(held_sequences(queue.conn, self.lease, self.topic)):
            logger.warning("tasks stay held under the claim: owner=%s tasks=%s", self.lease.name, count)
        return count

    @contextmanager
    def release_on_error(self, drain_lease: DrainLease) -> Iterator[None]:
        """Release the held tasks after an error in the block.

        Raises the queue's own error if that is the cause.
        """
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Exception):  # an interrupt of this thread does not reach the Spark jobs
                threading.Thread(target=self.jobs.cancel, daemon=True).start()
            if drain_lease.lost is not None:
                raise LeaseLost(str(drain_lease.lost)) from error
            with suppress(psycopg.Error, TaskQueueError):  # must not replace the error of the drain
                if self.claim_fence is None:
                    crashed = _PROCESS_DIED.search(str(error)) is not None
                    with self.connection_info.queue() as queue:
                        count = self.release(queue, crashed=crashed)
                    logger.info("tasks released after an error: tasks=%s crashed=%s", count, crashed)
            cause = queue_error(error)
            if cause is None or cause is error:
                raise
            raise cause from error


def queue_error(error: BaseException) -> TaskQueueError | None:
    """Return the queue's error that made a Spark job fail; None if the job failed for another reason."""
    if isinstance(error, TaskQueueError):
        return error
    if found := _QUEUE_ERROR.search(str(error)):
        kind = getattr(queue_package, found[1], TaskQueueError)
        return kind(found[2].strip()) if issubclass(kind, TaskQueueError) else None
    return None


def describe_error(error: BaseException) -> str:
    """Return the cause of an error in one line, for the standard error of the drain's program."""
    if cause := queue_error(error):
        return str(cause)
    text = str(error).strip()
    if "JAVA_GATEWAY_EXITED" in text or "JAVA_HOME" in text:
        return "Spark did not start: it needs Java 17 or later on the PATH or in JAVA_HOME"
    quoted = [found for found in _ANY_ERROR.finditer(text) if not found[1].endswith("SparkException")]
    if quoted:
        return f"{quoted[0][1]}: {quoted[0][2]}"
    first = (_BEFORE_CAUSE.sub("", text).splitlines() or [""])[0]
    if _LAST_FAILURE in first or text.startswith("An error occurred while calling"):
        return first.rpartition(_LAST_FAILURE)[2]
    return f"{type(error).__name__}: {first}" if text else type(error).__name__
