"""Writers: the rows of a DataFrame or of a micro-batch become tasks, or complete the tasks of an owner.

Each Spark task stages its rows under its attempt's number. The driver then names the successful attempts, and the queue
commits their rows in one transaction. So a retried or speculative attempt has no effect.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, StructType

from airflow_provider_taskq.queue import InvalidTask, TaskQueueError
from airflow_provider_taskq.queue.backoff import retrying
from airflow_provider_taskq.queue.faults import classify
from airflow_provider_taskq.spark.columns import column_types
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.encoding import Attempt, check_decision_columns, check_task_columns, task_copies
from airflow_provider_taskq.spark.follow_ups import decision_copies
from airflow_provider_taskq.spark.options import HeldOptions, PushOptions
from airflow_provider_taskq.spark.staging import Rows, current_attempt, micro_batch_attempt, stage_rows

COMMIT_SECONDS = 60.0  # for how long a commit is retried while the server is away


def new_tasks(options: PushOptions) -> Rows:
    """Return rows that are pushed. The sequences ascend by partition and then by the order of rows.

    The database applies the rules of a push, and its errors name the row.
    """
    return Rows(
        partial(_check_tasks, options.topic),
        task_copies,
        topic=options.topic,
        insertion=options.insertion,
        stream=options.stream,
        batch=options.batch,
    )


def decisions(options: HeldOptions) -> Rows:
    """Return rows that complete tasks of an owner, with their follow-ups, under the fence of the owner's lease.

    Columns: `sequence`; `result`, a name or number of `queue.Result`; optionally `message` (JSON text), `error`,
    `delay` (an interval or seconds, for a SUSPENSION), and those of follow_ups.py. A job whose owner has lost its lease
    changes nothing. If a task has several decisions, the result that comes first in FAILURE, SUSPENSION, FILTER,
    SUCCESS wins, with its message, error and delay.
    """
    return Rows(_check_decisions, decision_copies, options.lease, stage=options.stage, stream=options.stream)


def _check_tasks(topic: str | None, schema: StructType) -> None:
    check_task_columns(column_types(schema), topic)


def _check_decisions(schema: StructType) -> None:
    """Check that these columns can be decisions, and the structs in the column `push` new tasks."""
    check_decision_columns(column_types(schema))
    for field in schema.fields:
        if field.name.lower() == "push" and isinstance(field.dataType, ArrayType):
            element = field.dataType.elementType
            if not isinstance(element, StructType):
                raise InvalidTask(
                    f"column push of the decisions is {field.dataType.simpleString()}, not an array of structs"
                )
            _check_tasks(None, element)


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
        stage = rows.stage
        if stage is None:
            with connection_info.queue() as queue:
                stage, _ = queue.open_stage(rows.lease)
        return cls(rows, stage, connection_info)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Attempt:
        """Stage one partition, on an executor. The rows of a failed attempt are never committed."""
        return stage_rows(self.connection_info, self.rows, iterator, current_attempt(self.stage))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the staged rows, on the driver. A repeated call changes nothing."""
        if self.rows.lease[0] is None and self.rows.stream is not None and self.rows.batch is None:
            raise TaskQueueError("format taskq, mode push: option 'stream' needs a 'batch' outside of writeStream")
        commit_stage(self.connection_info, self.rows, self.stage, successful_attempts(messages), self.rows.batch)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Delete the staged rows."""
        with self.connection_info.queue() as queue:
            queue.close_stage(self.stage)


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
        if rows.batch is not None:
            raise TaskQueueError("format taskq, mode push: writeStream numbers its batches: remove option 'batch'")
        return cls(rows, str(uuid4()), connection_info)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Attempt:
        """Stage one partition of one batch, on an executor."""
        return stage_rows(self.connection_info, self.rows, iterator, micro_batch_attempt(self.seed))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        """Commit one batch, on the driver, unless it was committed before."""
        if attempts := successful_attempts(messages):
            commit_stage(self.connection_info, self.rows, attempts[0].stage, attempts, batch)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:  # noqa: ARG002
        """Delete the staged rows, if a message names their stage."""
        for attempt in successful_attempts(messages)[:1]:
            with self.connection_info.queue() as queue:
                queue.close_stage(attempt.stage)


def successful_attempts(messages: Sequence[WriterCommitMessage | None]) -> list[Attempt]:
    """Return the attempts whose rows Spark commits. The message of an attempt without a result is None."""
    return [message for message in messages if isinstance(message, Attempt)]


def commit_stage(
    connection_info: ConnectionInfo, rows: Rows, stage: str, attempts: Sequence[Attempt], batch: int | None = None
) -> None:
    """Commit the rows of a stage in one transaction, and retry it; with `batch`, once for each batch of the stream."""
    counts = [(each.part, each.number, each.count) for each in attempts]
    query = attempts[0].query if attempts else None

    def commit() -> None:
        with connection_info.queue() as queue:
            # By default a stream has the ID of its query as its name. A restarted query keeps it in the checkpoint.
            if batch is None or queue.begin_stream_batch(rows.stream or query or "", batch, query):
                queue.commit_stage(stage, counts, rows.lease, rows.topic, rows.insertion)
        with connection_info.queue(autocommit=True) as queue:
            if rows.stage is None:  # a drain closes its stage itself
                queue.close_stage(stage)
            if rows.topic is not None:
                queue.notify(rows.topic)

    commit_with_retry(commit)


def commit_with_retry(commit: Callable[[], None]) -> None:
    """Call `commit`, and repeat it for up to a minute while the server is away, is read-only, or cancels it.

    `commit` has to be idempotent: the answer of a commit that succeeded may be lost.
    """
    deadline = time.monotonic() + COMMIT_SECONDS

    def may_retry(error: Exception) -> bool:
        return classify(error).is_temporary and time.monotonic() <= deadline

    retrying(commit, may_retry, time.sleep)  # no event reports that the server is back
