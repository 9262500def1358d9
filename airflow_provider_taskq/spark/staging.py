"""Staging: executors copy rows into staging tables by attempt, and the driver commits the successful attempts."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid5

import psycopg
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from airflow_provider_taskq.queue import InvalidTask, TaskQueueError
from airflow_provider_taskq.queue.backoff import retrying
from airflow_provider_taskq.queue.errors import translate_errors
from airflow_provider_taskq.queue.faults import classify
from airflow_provider_taskq.spark.binary_copy import SIGNATURE, TRAILER
from airflow_provider_taskq.spark.columns import plain_batch
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.encoding import Attempt, Copy

COMMIT_SECONDS = 60.0  # for how long a commit is retried while the server is away
# Local properties of every Spark task of a stream: the ID of the query, from its checkpoint, and the batch's number.
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"

Encode = Callable[[pa.RecordBatch, Attempt], Iterable[Copy]]
Lease = tuple[str | None, int | None]  # the owner and the fence of a stage of decisions


@dataclass(frozen=True, slots=True)
class StagedAttempt(WriterCommitMessage):
    """The commit message of one attempt of a Spark task: its partition, its number, and how many rows it staged.

    In a stream, `stage`, `stream` and `query` (Spark's ID of the query) name the micro-batch.
    """

    part: int
    attempt: int
    count: int
    stage: str = ""
    stream: str = ""
    query: str | None = None


def micro_batch(context: TaskContext, name: str | None, seed: str) -> tuple[str, str]:
    """Return the stage and the stream's name of the micro-batch of a Spark task.

    All Spark tasks of a batch compute the same stage in one run of the stream, which has one `seed`. The default of the
    name is Spark's ID of the query, which a restarted query keeps, as it is stored in the checkpoint.

    Raises TaskQueueError outside of a stream.
    """
    query, number = query_id(context), context.getLocalProperty(BATCH_ID)
    if not query or not number:
        raise TaskQueueError("this Spark task belongs to no micro-batch: Spark set no query ID and no batch ID")
    return str(uuid5(UUID(seed), str(int(number)))), name or query


def task_context() -> TaskContext:
    """Return the context of the Spark task that runs in this process. Raises TaskQueueError if there is none."""
    context = TaskContext.get()
    if context is None:
        raise TaskQueueError("only a Spark task can stage rows, and this process runs none")
    return context


def query_id(context: TaskContext) -> str | None:
    """Return Spark's ID of the streaming query of a task, also inside foreachBatch; None outside of a stream."""
    return context.getLocalProperty(QUERY_ID)


def stage_rows(
    connection_info: ConnectionInfo, batches: Iterable[pa.RecordBatch], encode: Encode, lease: Lease, attempt: Attempt
) -> int:
    """Copy the rows of one attempt, on an executor, in one transaction for each batch, and return their number.

    Each transaction ends with a check of the stage. No transaction is open while the next batch is computed. If there
    are no rows, no connection is opened.
    """
    count = 0
    with ExitStack() as stack, translate_errors():
        conn: psycopg.Connection[Any] | None = None
        for batch in batches:
            if batch.num_rows:
                copies = encode(plain_batch(batch), attempt)  # an invalid row needs no connection
                conn = conn or stack.enter_context(connection_info.connect_executor())
                copy_rows(conn, copies)
                conn.execute("SELECT taskq.check_stage(%s::uuid, %s::text, %s::bigint)", (attempt.stage, *lease))
                conn.commit()
                count += batch.num_rows
    return count


def copy_rows(conn: psycopg.Connection[Any], copies: Iterable[Copy]) -> None:
    """Copy encoded rows into the staging tables, in the caller's transaction. Raises InvalidTask for bad JSON."""
    for each in copies:
        try:
            with translate_errors(), conn.cursor().copy(each.statement.encode()) as copy:
                copy.write(SIGNATURE)
                copy.write(memoryview(each.rows))
                copy.write(TRAILER)
        except (InvalidTask, psycopg.errors.StatementTooComplex):
            each.refuse_json()
            raise


def successful_attempts(messages: Sequence[WriterCommitMessage | None]) -> list[StagedAttempt]:
    """Return the attempts whose rows Spark commits. The message of an attempt without a result is None."""
    return [message for message in messages if isinstance(message, StagedAttempt)]


def begin_batch(conn: psycopg.Connection[Any], stream: str | None, batch: int, query: str | None) -> bool:
    """Store the batch as committed, in the caller's transaction. Return False if it was committed before.

    Raises an error of psycopg if another query uses the stream's name.
    """
    statement = "SELECT taskq.begin_stream_batch(%s::text, %s::bigint, %s::text)"
    return conn.execute(statement, (stream, batch, query)).fetchall() == [(True,)]


def commit_with_retry(commit: Callable[[], None]) -> None:
    """Call `commit`, and repeat it for up to a minute while the server is away, is read-only, or cancels it.

    `commit` has to be idempotent: the answer of a commit that succeeded may be lost.
    """
    deadline = time.monotonic() + COMMIT_SECONDS

    def may_retry(error: Exception) -> bool:
        return classify(error).is_temporary and time.monotonic() <= deadline

    retrying(commit, may_retry, time.sleep)  # no event reports that the server is back
