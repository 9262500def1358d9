"""Writers: the rows of a DataFrame or of a micro-batch become tasks, or complete the tasks of an owner.

Each Spark task stages its rows under its attempt's number. The driver then names the successful attempts, and the queue
commits their rows in one transaction. So a retried or speculative attempt has no effect.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias
from uuid import UUID, uuid4

import psycopg
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, StructType

from airflow_provider_taskq.queue import InvalidTask, TaskQueue, TaskQueueError
from airflow_provider_taskq.queue.errors import translate_errors
from airflow_provider_taskq.spark.columns import column_types
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.encoding import Attempt, check_decision_columns, check_task_columns, task_copies
from airflow_provider_taskq.spark.follow_ups import decision_copies
from airflow_provider_taskq.spark.options import HeldOptions, PushOptions
from airflow_provider_taskq.spark.staging import (
    Check,
    StagedAttempt,
    attempt_arrays,
    begin_batch,
    commit_with_retry,
    micro_batch,
    query_id,
    stage_rows,
    successful_attempts,
    task_context,
)


@dataclass(frozen=True, slots=True)
class NewTasks:
    """Rows that are pushed. The sequences ascend by partition and then by the order of rows.

    The database applies the rules of a push, and its errors name the row.
    """

    options: PushOptions
    encode = staticmethod(task_copies)

    def check_columns(self, schema: StructType) -> None:
        """Check that these columns can be new tasks."""
        check_task_columns(column_types(schema), self.options.topic)

    def open(self, conn: psycopg.Connection[Any]) -> str:
        """Return the ID of the stage of a job."""
        return str(_call(conn, "SELECT taskq.open_push()"))

    def still_open(self, stage: str) -> Check:
        """Return the last statement of a transaction that stages tasks."""
        return "SELECT taskq.check_push(%s::uuid)", (stage,)

    def commit(self, conn: psycopg.Connection[Any], stage: str, attempts: Sequence[StagedAttempt]) -> None:
        """Push the tasks of these attempts."""
        statement = "SELECT taskq.push_staged(%s::uuid, %s::text, %s::text, %s::int[], %s::bigint[], %s::bigint[])"
        _call(conn, statement, stage, self.options.topic, self.options.insertion, *attempt_arrays(attempts))

    def finish(self, conn: psycopg.Connection[Any], stage: str) -> None:
        """Delete the staged tasks, and notify the consumers of the topic."""
        self.abandon(conn, stage)
        conn.commit()
        if self.options.topic is not None:
            TaskQueue(conn).notify(self.options.topic)

    def abandon(self, conn: psycopg.Connection[Any], stage: str) -> None:
        """Delete the staged tasks. If this fails, taskq_internal.prune_staged_tasks deletes them a day later."""
        _call(conn, "SELECT taskq.abandon_push(%s::uuid)", stage)


@dataclass(frozen=True, slots=True)
class Decisions:
    """Rows that complete tasks of an owner, with their follow-ups, under the fence of the owner's lease.

    Columns: `sequence`; `result`, a name or number of `queue.Result`; optionally `message` (JSON text), `error`,
    `delay` (an interval or seconds, for a SUSPENSION), and those of follow_ups.py. A job whose owner has lost its lease
    changes nothing. If a task has several decisions, the result that comes first in FAILURE, SUSPENSION, FILTER,
    SUCCESS wins, with its message, error and delay.
    """

    options: HeldOptions
    encode = staticmethod(decision_copies)

    def check_columns(self, schema: StructType) -> None:
        """Check that these columns can be decisions, and the structs in the column `push` new tasks."""
        check_decision_columns(column_types(schema))
        for field in schema.fields:
            if field.name.lower() == "push" and isinstance(field.dataType, ArrayType):
                element = field.dataType.elementType
                if not isinstance(element, StructType):
                    raise InvalidTask(
                        f"column push of the decisions is {field.dataType.simpleString()}, not an array of structs"
                    )
                check_task_columns(column_types(element), None)

    def open(self, conn: psycopg.Connection[Any]) -> str:
        """Prune the stages of owners whose leases have ended, and return the ID of the stage of a job."""
        _call(conn, "SELECT taskq.prune_stages()")
        return str(_call(conn, "SELECT taskq.open_stage(%s::text, %s::bigint)", self.options.owner, self.options.fence))

    def still_open(self, stage: str) -> Check:
        """Return the last statement of a transaction that stages decisions: it fails if the lease is gone, too."""
        arguments = (self.options.owner, self.options.fence, stage)
        return "SELECT taskq.check_stage(%s::text, %s::bigint, %s::uuid)", arguments

    def commit(self, conn: psycopg.Connection[Any], stage: str, attempts: Sequence[StagedAttempt]) -> None:
        """Complete the tasks by the decisions of these attempts."""
        statement = (
            "SELECT taskq.complete_staged(%s::text, %s::bigint, %s::uuid, %s::int[], %s::bigint[], %s::bigint[])"
        )
        _call(conn, statement, self.options.owner, self.options.fence, stage, *attempt_arrays(attempts))

    def finish(self, conn: psycopg.Connection[Any], stage: str) -> None:
        """Notify the consumers of the follow-ups, and delete the staged rows. A drain does so itself."""
        if self.options.stage is None:
            _call(conn, "SELECT count(*) FROM taskq.finish_stage(%s::uuid)", stage)
            self.abandon(conn, stage)  # of a micro-batch that was committed before, and is not now

    def abandon(self, conn: psycopg.Connection[Any], stage: str) -> None:
        """Delete the staged rows. If this fails, taskq.prune_stages deletes them after the lease has ended."""
        _call(conn, "SELECT taskq.abandon_stage(%s::uuid)", stage)


Rows: TypeAlias = NewTasks | Decisions


def _call(conn: psycopg.Connection[Any], statement: str, *arguments: object) -> Any:
    """Call a function in the caller's transaction, and return its value."""
    with translate_errors():
        row = conn.execute(statement.encode(), arguments).fetchone()
    return row[0] if row else None


@dataclass(eq=False)
class BatchWriter(DataSourceArrowWriter):
    """Commits all rows of a job together, or none, each once, however often Spark runs a task."""

    rows: Rows
    stage: str
    connection_info: ConnectionInfo

    @classmethod
    def open(cls, rows: Rows, schema: StructType, connection_info: ConnectionInfo) -> Self:
        """Check the columns, open a stage unless an option names that of a drain, and return the writer."""
        rows.check_columns(schema)
        stage = rows.options.stage if isinstance(rows.options, HeldOptions) else None
        if stage is None:
            with connection_info.connect() as conn:
                stage = rows.open(conn)
        return cls(rows, stage, connection_info)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedAttempt:
        """Stage one partition, on an executor. The rows of a failed attempt are never committed."""
        return stage_partition(self.connection_info, self.rows, iterator, self.stage, task_context())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the staged rows, on the driver. A repeated call changes nothing."""
        options, attempts = self.rows.options, successful_attempts(messages)
        stream, batch = (options.stream, options.batch) if isinstance(options, PushOptions) else (None, None)
        if stream is not None and batch is None:
            raise TaskQueueError("format taskq, mode push: option 'stream' needs a 'batch' outside of writeStream")
        commit_stage(self.connection_info, self.rows, self.stage, attempts, stream, batch)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Delete the staged rows."""
        with self.connection_info.connect() as conn:
            self.rows.abandon(conn, self.stage)


@dataclass(eq=False)
class StreamWriter(DataSourceStreamArrowWriter):
    """Commits the rows of each micro-batch together, and once: a replayed batch commits nothing.

    The batch's number is stored under the stream's name, in the transaction that commits its rows. The owner of
    decisions has to hold the tasks, and its lease has to be kept, until then.
    """

    rows: Rows
    seed: str
    connection_info: ConnectionInfo

    @classmethod
    def open(cls, rows: Rows, schema: StructType, connection_info: ConnectionInfo) -> Self:
        """Check the columns and the options, and return the writer of one run of a stream."""
        rows.check_columns(schema)
        if isinstance(rows.options, PushOptions) and rows.options.batch is not None:
            raise TaskQueueError("format taskq, mode push: writeStream numbers its batches: remove option 'batch'")
        return cls(rows, str(uuid4()), connection_info)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedAttempt:
        """Stage one partition of one batch, on an executor."""
        context = task_context()
        stage, stream = micro_batch(context, self.rows.options.stream, self.seed)
        return stage_partition(self.connection_info, self.rows, iterator, stage, context, stream)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        """Commit one batch, on the driver, unless it was committed before."""
        if attempts := successful_attempts(messages):
            commit_stage(self.connection_info, self.rows, attempts[0].stage, attempts, attempts[0].stream, batch)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:  # noqa: ARG002
        """Delete the staged rows, if a message names their stage."""
        for staged in successful_attempts(messages)[:1]:
            with self.connection_info.connect() as conn:
                self.rows.abandon(conn, staged.stage)


def stage_partition(
    connection_info: ConnectionInfo,
    rows: Rows,
    batches: Iterator[pa.RecordBatch],
    stage: str,
    context: TaskContext,
    stream: str = "",
) -> StagedAttempt:
    """Stage the rows of one partition, on an executor, and return the message that names them."""
    attempt = Attempt(UUID(stage), context.partitionId(), context.taskAttemptId())
    count = stage_rows(connection_info, batches, rows.encode, rows.still_open(stage), attempt)
    return StagedAttempt(attempt.part, attempt.number, count, stage, stream, query_id(context))


def commit_stage(
    connection_info: ConnectionInfo,
    rows: Rows,
    stage: str,
    attempts: Sequence[StagedAttempt],
    stream: str | None = None,
    batch: int | None = None,
) -> None:
    """Commit the rows of a stage in one transaction, and retry it; with `batch`, once for each batch of the stream."""

    def commit() -> None:
        with connection_info.connect() as conn:
            query = attempts[0].query if attempts else None
            if batch is None or begin_batch(conn, stream, batch, query):
                rows.commit(conn, stage, attempts)
            conn.commit()
            rows.finish(conn, stage)

    commit_with_retry(commit)
