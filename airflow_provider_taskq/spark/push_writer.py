"""mode=push: the rows of a DataFrame become tasks, all of them or none."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID, uuid4

import psycopg
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from airflow_provider_taskq.queue import Insertion, TaskQueue, TaskQueueError
from airflow_provider_taskq.queue.errors import translate_errors
from airflow_provider_taskq.spark.connection import Route
from airflow_provider_taskq.spark.options import known, number
from airflow_provider_taskq.spark.push_columns import COPY, check_columns, staged_tasks
from airflow_provider_taskq.spark.staging import (
    Staged,
    arrays,
    batch_of,
    begins,
    derived_stage,
    query_of,
    stage_rows,
    this_try,
    until_answered,
    winners,
)

_CHECK = "SELECT taskq.check_push(%s::uuid)"


@dataclass(frozen=True, slots=True)
class PushOptions:
    """Where tasks go, and how. With `stream` and `batch` a push is committed once under that name and number."""

    topic: str | None
    insertion: Insertion
    stream: str | None
    batch: int | None

    @classmethod
    def parsed(cls, options: Mapping[str, str]) -> Self:
        """The options of mode=push; a sentence for each that is unknown or nonsense."""
        given = known(options, "push", "write", {"topic", "insertion", "stream", "batch"})
        insertion = given.get("insertion", "APPEND").upper()
        if insertion not in Insertion.__members__:
            names = ", ".join(Insertion.__members__)
            raise TaskQueueError(f"format taskq, mode push: insertion {insertion!r} is none of {names}")
        if ("batch" in given) > ("stream" in given):
            raise TaskQueueError("format taskq, mode push: a batch is one of a stream: name it by option 'stream'")
        batch = number(given["batch"], "batch", 0) if "batch" in given else None
        return cls(given.get("topic"), Insertion[insertion], given.get("stream"), batch)


class PushWriter(DataSourceArrowWriter):
    """Pushes all rows of a job together or none of them, each once, whatever Spark tries twice.

    Each Spark task stages its rows under its own number in a transaction of its own. The driver then names the tries
    that won, and the queue pushes those in one transaction, by partition and then in the order of their rows: so their
    sequences ascend. The database applies the rules of a push; what breaks one is named by its place among all rows.
    """

    def __init__(self, options: PushOptions, stage: str, route: Route) -> None:
        self.options = options
        self.stage = stage
        self.route = route

    @classmethod
    def opened(cls, options: PushOptions, schema: StructType, route: Route) -> Self:
        """The writer of one job, with a stage that is its own."""
        check_tasks(schema, options)
        with route.connect() as conn, translate_errors():
            row = conn.execute("SELECT taskq.open_push()::text").fetchone()
        assert row is not None  # noqa: S101
        return cls(options, str(row[0]), route)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stages one partition, on an executor. A failed try leaves nothing, or rows that nobody will name."""
        return _stage_tasks(self.route, iterator, self.stage, this_try())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Pushes the stage, on the driver; it is pushed once however often that is asked for."""
        options, won = self.options, winners(messages)
        if options.stream is not None and options.batch is None:
            raise TaskQueueError("format taskq, mode push: option 'stream' needs a 'batch' outside of writeStream")
        until_answered(lambda: push_stage(self.route, options, self.stage, won, options.stream, options.batch))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Forgets what was staged. Where that fails too, taskq_internal.prune_staged_tasks does it a day later."""
        with self.route.connect() as conn:
            _abandon(conn, self.stage)


class PushStreamWriter(DataSourceStreamArrowWriter):
    """Pushes every micro-batch of a stream once: a batch that is replayed commits nothing again.

    The number of the last batch is remembered with its tasks, under the name of the stream, in the same transaction.
    """

    def __init__(self, options: PushOptions, seed: str, route: Route) -> None:
        self.options = options
        self.seed = seed
        self.route = route

    @classmethod
    def opened(cls, options: PushOptions, schema: StructType, route: Route) -> Self:
        """The writer of one run of a stream, or of one of its commits."""
        check_tasks(schema, options)
        if options.batch is not None:
            raise TaskQueueError("format taskq, mode push: writeStream numbers its batches itself: no option 'batch'")
        return cls(options, str(uuid4()), route)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stages one partition of one batch, on an executor."""
        context = this_try()
        batch = batch_of(context, self.options.stream)
        return _stage_tasks(self.route, iterator, str(derived_stage(self.seed, batch.number)), context, batch.stream)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        """Pushes one batch, on the driver, unless it was pushed before."""
        if won := winners(messages):
            until_answered(lambda: push_stage(self.route, self.options, won[0].stage, won, won[0].stream, batch))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:  # noqa: ARG002
        """Forgets what was staged, as far as it is known where."""
        for staged in winners(messages)[:1]:
            with self.route.connect() as conn:
                _abandon(conn, staged.stage)


def check_tasks(schema: StructType, options: PushOptions) -> None:
    """Refuses columns that are not those of tasks."""
    check_columns({field.name: field.dataType.simpleString() for field in schema.fields}, options.topic)


def _stage_tasks(
    route: Route, batches: Iterator[pa.RecordBatch], stage: str, context: TaskContext, stream: str = ""
) -> Staged:
    """One partition into taskq.staged_task."""
    number_of_stage, part, attempt = UUID(stage).bytes, context.partitionId(), context.taskAttemptId()
    count = stage_rows(
        route,
        COPY,
        batches,
        lambda batch, first: staged_tasks(batch, number_of_stage, part, attempt, first),
        (_CHECK, (stage,)),
    )
    return Staged(part, attempt, count, stage, stream, query_of(context))


def push_stage(
    route: Route, options: PushOptions, stage: str, won: Sequence[Staged], stream: str | None, batch: int | None
) -> None:
    """One transaction: all tasks of the stage, and that this batch of the stream is done, where it is one."""
    with route.connect() as conn:
        with translate_errors():
            if batch is None or begins(conn, stream, batch, won[0].query if won else None):
                conn.execute(
                    "SELECT taskq.push_staged(%s::uuid, %s::text, %s::text, %s::int[], %s::bigint[], %s::bigint[])",
                    (stage, options.topic, options.insertion, *arrays(won)),
                )
        conn.commit()
        _abandon(conn, stage)
        if options.topic is not None:
            conn.commit()
            TaskQueue(conn).notify(options.topic)


def _abandon(conn: psycopg.Connection[Any], stage: str) -> None:
    """Forgets what was staged."""
    with translate_errors():
        conn.execute("SELECT taskq.abandon_push(%s::uuid)", (stage,))
