"""Writers: the rows of a DataFrame or of a micro-batch become tasks, or complete the tasks of an owner.

Each Spark task stages its rows under its attempt's number. The driver then names the successful attempts, and the queue
commits their rows in one transaction. So a retried or speculative attempt has no effect.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias
from uuid import UUID, uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, StructType

from airflow_provider_taskq.queue import Insertion, InvalidTask, TaskQueue, TaskQueueError
from airflow_provider_taskq.queue.errors import translate_errors
from airflow_provider_taskq.spark.columns import column_types
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.encoding import Attempt, check_decision_columns, check_task_columns, task_copies
from airflow_provider_taskq.spark.follow_ups import decision_copies
from airflow_provider_taskq.spark.options import HeldOptions, PushOptions
from airflow_provider_taskq.spark.staging import (
    Lease,
    StagedAttempt,
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

    @property
    def lease(self) -> Lease:
        """No lease: a push belongs to no owner."""
        return None, None

    @property
    def target(self) -> tuple[str | None, str]:
        """The topic of all tasks, None if each names its own; and the insertion."""
        return self.options.topic, self.options.insertion

    def check_columns(self, schema: StructType) -> None:
        """Check that these columns can be new tasks."""
        check_task_columns(column_types(schema), self.options.topic)


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

    @property
    def lease(self) -> Lease:
        """The owner and the fence under which it holds the tasks."""
        return self.options.owner, self.options.fence

    @property
    def target(self) -> tuple[str | None, str]:
        """Follow-ups name their own topics."""
        return None, Insertion.APPEND

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


Rows: TypeAlias = NewTasks | Decisions


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
            statement = "SELECT taskq.open_stage(%s::text, %s::bigint)::text"
            ((stage,),) = connection_info.fetch_all(statement, rows.lease)
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
        close_stage(self.connection_info, self.stage)


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
            close_stage(self.connection_info, staged.stage)


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
    count = stage_rows(connection_info, batches, rows.encode, rows.lease, attempt)
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
    numbers = [[getattr(each, name) for each in attempts] for name in ("part", "attempt", "count")]
    statement = (
        b"SELECT taskq.commit_stage(%s::uuid, %s::int[], %s::bigint[], %s::bigint[], %s::text, %s::bigint, %s::text,"
        b" %s::text)"
    )

    def commit() -> None:
        with connection_info.connect() as conn, translate_errors():
            query = attempts[0].query if attempts else None
            if batch is None or begin_batch(conn, stream, batch, query):
                conn.execute(statement, (stage, *numbers, *rows.lease, *rows.target))
        if isinstance(rows.options, PushOptions) or rows.options.stage is None:  # a drain closes its stage itself
            close_stage(connection_info, stage)
        if (topic := rows.target[0]) is not None:
            with connection_info.connect() as conn:
                TaskQueue(conn).notify(topic)

    commit_with_retry(commit)


def close_stage(connection_info: ConnectionInfo, stage: str) -> tuple[Any, ...]:
    """Delete the staged rows, and notify the consumers of the topics that they name, if the stage was committed.

    Return how many tasks it completed, how many follow-ups it pushed, how many tasks it completed with each result, and
    how many decisions it dropped.
    """
    statement = "SELECT completed, pushed, results, returned FROM taskq.close_stage(%s::uuid)"
    return connection_info.fetch_all(statement, (stage,))[0]
