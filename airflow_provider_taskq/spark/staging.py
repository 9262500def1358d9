"""Staging: executors copy the rows of their attempts into staging tables."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from uuid import UUID, uuid5

import psycopg
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from airflow_provider_taskq.queue import Insertion, InvalidTask, TaskQueueError
from airflow_provider_taskq.queue.errors import translate_errors
from airflow_provider_taskq.queue.jobs import JobQueue, LeaseKey
from airflow_provider_taskq.spark.binary_copy import SIGNATURE, TRAILER
from airflow_provider_taskq.spark.columns import plain_batch
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.encoding import Attempt, Copy

# Local properties of every Spark task of a stream: the ID of the query, from its checkpoint, and the batch's number.
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class Rows:
    """The meaning of the rows of a DataFrame: how they are checked, encoded and committed.

    `lease` is that of the owner of decisions. `topic` and `insertion` are those of a push; without a topic each task
    names its own. `stage` is that of a drain, which closes it. With `stream` and `batch`, only one job commits under
    that name and number.
    """

    check_columns: Callable[[StructType], None]
    encode: Callable[[pa.RecordBatch, Attempt], Iterable[Copy]]
    lease: LeaseKey = (None, None)
    topic: str | None = None
    insertion: Insertion = Insertion.APPEND
    stage: str | None = None
    stream: str | None = None
    batch: int | None = None


def task_context() -> TaskContext:
    """Return the context of the Spark task that runs in this process. Raises TaskQueueError if there is none."""
    context = TaskContext.get()
    if context is None:
        raise TaskQueueError("only a Spark task can stage rows, and this process runs none")
    return context


def current_attempt(stage: str) -> Attempt:
    """Return the attempt of the Spark task that runs in this process."""
    context = task_context()
    # Spark sets the ID also inside of foreachBatch.
    return Attempt(stage, context.partitionId(), context.taskAttemptId(), query=context.getLocalProperty(QUERY_ID))


def micro_batch_attempt(seed: str) -> Attempt:
    """Return the attempt of the Spark task that runs in this process for a micro-batch.

    All Spark tasks of a batch compute the same stage in one run of the stream, which has one `seed`.

    Raises TaskQueueError outside of a stream.
    """
    attempt, number = current_attempt(""), task_context().getLocalProperty(BATCH_ID)
    if not attempt.query or not number:
        raise TaskQueueError("this Spark task belongs to no micro-batch: Spark set no query ID and no batch ID")
    attempt.stage = str(uuid5(UUID(seed), str(int(number))))
    return attempt


def stage_rows(
    connection_info: ConnectionInfo, rows: Rows, batches: Iterable[pa.RecordBatch], attempt: Attempt
) -> Attempt:
    """Copy the rows of one attempt, on an executor, in one transaction for each batch, and return the attempt.

    Each transaction ends with a check of the stage. No transaction is open while the next batch is computed. If there
    are no rows, no connection is opened.
    """
    with ExitStack() as stack, translate_errors():
        queue: JobQueue | None = None
        for batch in batches:
            if batch.num_rows:
                copies = rows.encode(plain_batch(batch), attempt)  # an invalid row needs no connection
                queue = queue or stack.enter_context(connection_info.executor_queue())
                copy_rows(queue, copies)
                queue.check_stage(attempt.stage, rows.lease)
                queue.conn.commit()
                attempt.count += batch.num_rows
    return attempt


def copy_rows(queue: JobQueue, copies: Iterable[Copy]) -> None:
    """Copy encoded rows into the staging tables, in the caller's transaction. Raises InvalidTask for bad JSON."""
    for each in copies:
        try:
            queue.stage(each.table, (SIGNATURE, memoryview(each.rows), TRAILER))
        except (InvalidTask, psycopg.errors.StatementTooComplex):
            each.refuse_json()
            raise
