"""Batch writers: mode=push turns the rows of a DataFrame into tasks, mode=complete completes the tasks of an owner."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID

import psycopg
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from airflow_provider_taskq.queue import TaskQueue, TaskQueueError
from airflow_provider_taskq.queue.errors import translate_errors
from airflow_provider_taskq.spark.columns import column_types
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.encoding import (
    COPY_DECISIONS,
    COPY_TASKS,
    check_decision_columns,
    check_task_columns,
    encode_decisions,
    encode_tasks,
)
from airflow_provider_taskq.spark.options import HeldOptions, PushOptions
from airflow_provider_taskq.spark.staging import (
    Check,
    StagedAttempt,
    attempt_arrays,
    begin_batch,
    commit_with_retry,
    query_id,
    stage_rows,
    successful_attempts,
    task_context,
)


@dataclass(eq=False)
class PushWriter(DataSourceArrowWriter):
    """Pushes all rows of a job or none, each once, however often Spark runs a task.

    Each Spark task stages its rows under its attempt's number in its own transaction. The driver then names the
    successful attempts, and the queue pushes their rows in one transaction. The sequences ascend by partition and then
    by the order of rows. The database applies the rules of a push, and its errors name the row.
    """

    options: PushOptions
    stage: str
    connection_info: ConnectionInfo

    @classmethod
    def open(cls, options: PushOptions, schema: StructType, connection_info: ConnectionInfo) -> Self:
        """Check the columns, open a stage for the job, and return its writer."""
        check_task_columns(column_types(schema), options.topic)
        ((stage,),) = connection_info.fetch_all("SELECT taskq.open_push()::text")
        return cls(options, stage, connection_info)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedAttempt:
        """Stage one partition, on an executor. The rows of a failed attempt are never committed."""
        return stage_tasks(self.connection_info, iterator, self.stage, task_context())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Push the staged rows, on the driver. A repeated call pushes nothing twice."""
        options, attempts = self.options, successful_attempts(messages)
        if options.stream is not None and options.batch is None:
            raise TaskQueueError("format taskq, mode push: option 'stream' needs a 'batch' outside of writeStream")
        commit_with_retry(
            lambda: push_stage(self.connection_info, options, self.stage, attempts, options.stream, options.batch)
        )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Delete the staged rows. If this fails, taskq_internal.prune_staged_tasks deletes them a day later."""
        with self.connection_info.connect() as conn:
            abandon_push(conn, self.stage)


@dataclass(eq=False)
class CompleteWriter(DataSourceArrowWriter):
    """Completes the tasks that an owner holds: by all decisions of a job together, or by none.

    Columns: `sequence`; `result`, a name or number of `queue.Result`; optionally `message` (JSON text), `error`, and
    `delay` (an interval or seconds, for a SUSPENSION). Each Spark task stages its decisions under its attempt's number
    in its own transaction. The driver then names the successful attempts, and the queue commits their decisions in
    one transaction under the owner's fence. A retried or speculative attempt has no effect. A job whose owner has lost
    its lease changes nothing. If a task has several decisions, the result that comes first in FAILURE, SUSPENSION,
    FILTER, SUCCESS wins, with its message, error and delay.
    """

    options: HeldOptions
    stage: str
    connection_info: ConnectionInfo

    @classmethod
    def open(cls, options: HeldOptions, schema: StructType, connection_info: ConnectionInfo) -> Self:
        """Check the columns, open a stage unless an option names that of a drain, and return the writer."""
        check_decision_columns(column_types(schema))
        stage = options.stage
        if stage is None:
            with connection_info.connect() as conn:
                stage = open_stage(conn, options.owner, options.fence)
        return cls(options, stage, connection_info)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedAttempt:
        """Stage one partition, on an executor. The rows of a failed attempt are never committed."""
        return stage_decisions(self.connection_info, self.options, iterator, self.stage, task_context())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the staged decisions, on the driver. A repeated call changes nothing."""
        attempts = successful_attempts(messages)
        commit_with_retry(lambda: self._complete(attempts))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Delete the staged rows. If this fails, taskq.prune_stages deletes them after the lease has ended."""
        with self.connection_info.connect() as conn:
            abandon_stage(conn, self.stage)

    def _complete(self, attempts: Sequence[StagedAttempt]) -> None:
        with self.connection_info.connect() as conn:
            complete_stage(conn, self.options, self.stage, attempts)
            if self.options.stage is None:  # a drain reads the results of its stage first, and abandons it then
                abandon_stage(conn, self.stage)


def stage_tasks(
    connection_info: ConnectionInfo,
    batches: Iterator[pa.RecordBatch],
    stage: str,
    context: TaskContext,
    stream: str = "",
) -> StagedAttempt:
    """Copy the new tasks of one partition into the stage, on an executor."""
    key, part, attempt = UUID(stage).bytes, context.partitionId(), context.taskAttemptId()
    count = stage_rows(
        connection_info,
        COPY_TASKS,
        batches,
        lambda batch, first: encode_tasks(batch, key, part, attempt, first),
        ("SELECT taskq.check_push(%s::uuid)", (stage,)),
    )
    return StagedAttempt(part, attempt, count, stage, stream, query_id(context))


def push_stage(
    connection_info: ConnectionInfo,
    options: PushOptions,
    stage: str,
    attempts: Sequence[StagedAttempt],
    stream: str | None,
    batch: int | None,
) -> None:
    """Push the tasks of a stage in one transaction; with `batch`, once for each batch of the stream."""
    with connection_info.connect() as conn:
        with translate_errors():
            if batch is None or begin_batch(conn, stream, batch, attempts[0].query if attempts else None):
                conn.execute(
                    "SELECT taskq.push_staged(%s::uuid, %s::text, %s::text, %s::int[], %s::bigint[], %s::bigint[])",
                    (stage, options.topic, options.insertion, *attempt_arrays(attempts)),
                )
        conn.commit()
        abandon_push(conn, stage)
        if options.topic is not None:
            conn.commit()
            TaskQueue(conn).notify(options.topic)


def abandon_push(conn: psycopg.Connection[Any], stage: str) -> None:
    """Delete the staged tasks, in the caller's transaction."""
    with translate_errors():
        conn.execute("SELECT taskq.abandon_push(%s::uuid)", (stage,))


def stage_decisions(
    connection_info: ConnectionInfo,
    options: HeldOptions,
    batches: Iterator[pa.RecordBatch],
    stage: str,
    context: TaskContext,
    stream: str = "",
) -> StagedAttempt:
    """Copy the decisions of one partition into the stage, on an executor."""
    key, part, attempt = UUID(stage).bytes, context.partitionId(), context.taskAttemptId()
    count = stage_rows(
        connection_info,
        COPY_DECISIONS,
        batches,
        lambda batch, _: encode_decisions(batch, key, part, attempt),
        stage_check(options, stage),
    )
    return StagedAttempt(part, attempt, count, stage, stream, query_id(context))


def stage_check(options: HeldOptions, stage: str) -> Check:
    """Return the last statement of a staging transaction: it fails if the lease is gone or the stage is completed."""
    return "SELECT taskq.check_stage(%s::text, %s::bigint, %s::uuid)", (options.owner, options.fence, stage)


def complete_stage(
    conn: psycopg.Connection[Any], options: HeldOptions, stage: str, attempts: Sequence[StagedAttempt]
) -> None:
    """Complete the tasks by the decisions of these attempts, in the caller's transaction."""
    with translate_errors():
        conn.execute(
            "SELECT taskq.complete_staged(%s::text, %s::bigint, %s::uuid, %s::int[], %s::bigint[], %s::bigint[])",
            (options.owner, options.fence, stage, *attempt_arrays(attempts)),
        )


def open_stage(conn: psycopg.Connection[Any], owner: str, fence: int | None) -> str:
    """Open a stage for an owner, prune the stages of owners whose leases have ended, and return the stage's ID."""
    with translate_errors():
        conn.execute("SELECT taskq.prune_stages()")
        row = conn.execute("SELECT taskq.open_stage(%s::text, %s::bigint)::text", (owner, fence)).fetchone()
    assert row is not None  # noqa: S101
    return str(row[0])


def abandon_stage(conn: psycopg.Connection[Any], stage: str) -> None:
    """Delete the staged decisions, in the caller's transaction."""
    with translate_errors():
        conn.execute("SELECT taskq.abandon_stage(%s::uuid)", (stage,))
