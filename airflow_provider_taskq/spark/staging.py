"""How a job's writes land together: executors stage, each try under its number, and the driver commits what won."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid5

import psycopg
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from airflow_provider_taskq.queue import TaskQueueError
from airflow_provider_taskq.queue.errors import is_connection_lost, is_transient, translate_errors
from airflow_provider_taskq.spark.binary_copy import SIGNATURE, TRAILER
from airflow_provider_taskq.spark.connection import Route

COMMIT_SECONDS = 60.0  # how long a commit goes on asking a server that has gone away
PAUSE_SECONDS = 0.5
# What Spark tells every task of a stream: the number of the query, as its checkpoint has it, and that of the batch.
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"

Encode = Callable[[pa.RecordBatch, int], pa.Buffer]


@dataclass(frozen=True, slots=True)
class Staged(WriterCommitMessage):
    """What one try of one Spark task staged; in a stream, also where, and whose batch it is.

    `query` is Spark's own number of the query, as its checkpoint has it.
    """

    part: int
    attempt: int
    count: int
    stage: str = ""
    stream: str = ""
    query: str | None = None


def this_try() -> TaskContext:
    """The running try of a Spark task."""
    context = TaskContext.get()
    if context is None:
        raise TaskQueueError("rows are staged by Spark's tasks only")
    return context


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch: the name by which batches of its stream are remembered, its query, and its number."""

    stream: str
    query: str
    number: int


def batch_of(context: TaskContext, name: str | None) -> Batch:
    """The micro-batch that this task belongs to.

    The name is Spark's own for the query unless it is given: it stands in the checkpoint, so that a restart goes on
    under it, and a stream with a new checkpoint is another one.
    """
    query, batch = query_of(context), context.getLocalProperty(BATCH_ID)
    if not query or not batch:
        raise TaskQueueError("this is no micro-batch of a stream: Spark names neither query nor batch")
    return Batch(name or query, query, int(batch))


def query_of(context: TaskContext) -> str | None:
    """The number of the streaming query that this task belongs to, in foreachBatch too; None where there is none."""
    return context.getLocalProperty(QUERY_ID)


def derived_stage(seed: str, batch: int) -> UUID:
    """The stage of one batch of one run of a stream: all of its tasks find the same one without asking."""
    return uuid5(UUID(seed), str(batch))


def stage_rows(
    route: Route, statement: str, batches: Iterable[pa.RecordBatch], encode: Encode, check: tuple[str, Sequence[object]]
) -> int:
    """Copies the rows of one try into the database, in a transaction that ends with a check; returns how many.

    Nothing connects where there are none.
    """
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return 0
    count = 0
    with route.connect_executor() as conn, translate_errors():
        with conn.cursor().copy(statement.encode()) as copy:
            copy.write(SIGNATURE)
            for batch in _chained(first, filled):
                copy.write(memoryview(encode(batch, count)))
                count += batch.num_rows
            copy.write(TRAILER)
        conn.execute(check[0].encode(), check[1])
    return count


def _chained(first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from others


def winners(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    """The tries that Spark chose."""
    return [message for message in messages if isinstance(message, Staged)]


def arrays(won: Sequence[Staged]) -> tuple[list[int], list[int], list[int]]:
    """The tries as arguments of the functions that commit: parts, attempts, counts."""
    return [staged.part for staged in won], [staged.attempt for staged in won], [staged.count for staged in won]


def begins(conn: psycopg.Connection[Any], stream: str | None, batch: int, query: str | None) -> bool:
    """Whether this batch of the stream is committed for the first time, which is remembered with the transaction.

    TaskQueueError where the name is that of another query.
    """
    asked = "SELECT taskq.begin_stream_batch(%s::text, %s::bigint, %s::text)"
    return conn.execute(asked, (stream, batch, query)).fetchall() == [(True,)]


def until_answered(commit: Callable[[], None]) -> None:
    """Commits; tried again for a minute while the server is away, read-only, or cancels the commit.

    What is committed answers the same again.
    """
    deadline = time.monotonic() + COMMIT_SECONDS
    while True:
        try:
            commit()
        except (psycopg.Error, TaskQueueError) as error:
            if not _may_pass(error) or time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_SECONDS)  # nothing tells when the server is back
        else:
            return


def _may_pass(error: Exception) -> bool:
    """Whether the server was away, could not write or interrupted the commit, rather than of another opinion."""
    if isinstance(error, psycopg.Error):
        lost = isinstance(error, psycopg.OperationalError) and error.sqlstate is None
        return lost or is_connection_lost(error) or is_transient(error)
    return str(error).startswith("cannot connect")
