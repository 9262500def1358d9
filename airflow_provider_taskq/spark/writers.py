"""mode=complete: executors stage decisions, the driver carries them out in one transaction."""

from collections.abc import Iterator, Sequence
from typing import Any, Self
from uuid import UUID

import psycopg
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from airflow_provider_taskq.queue.errors import translate_errors
from airflow_provider_taskq.spark.connection import Route
from airflow_provider_taskq.spark.encoding import COPY, check_columns, staged_rows
from airflow_provider_taskq.spark.options import SourceOptions
from airflow_provider_taskq.spark.staging import (
    Staged,
    arrays,
    query_of,
    stage_rows,
    this_try,
    until_answered,
    winners,
)


class CompleteWriter(DataSourceArrowWriter):
    """Ends the tasks that an owner holds, all of a job's decisions together or none of them.

    Columns: `sequence`; `result`, a name or number of `queue.Result`; if wanted `message` (JSON text), `error`, and
    `delay` (an interval or seconds, for a SUSPENSION). Each Spark task stages its decisions under its own number in a
    transaction of its own. The driver then names the tries that won, and the queue carries out those and no others
    in one transaction, under the owner's fence: retries and speculation leave nothing double, and a job whose lease is
    gone changes nothing. One task may be decided several times in a job; the result that stands first in FAILURE,
    SUSPENSION, FILTER, SUCCESS stands, with its message, error and delay.
    """

    def __init__(self, options: SourceOptions, stage: str, route: Route) -> None:
        self.options = options
        self.stage = stage
        self.route = route

    @classmethod
    def opened(cls, options: SourceOptions, schema: StructType, route: Route) -> Self:
        """The writer of one job, with a stage that is its own."""
        check_columns({field.name: field.dataType.simpleString() for field in schema.fields})
        stage = options.stage
        if stage is None:
            with route.connect() as conn:
                stage = open_stage(conn, options.owner, options.fence)
        return cls(options, stage, route)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stages one partition, on an executor. A failed try leaves nothing, or rows that nobody will name."""
        context = this_try()
        return stage_decisions(self.route, self.options, iterator, self.stage, context)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Carries the stage out, on the driver.

        A stage is carried out once however often that is asked for, so a server that went away is simply asked again.
        """
        won = winners(messages)
        until_answered(lambda: self._carry_out(won))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Forgets what was staged. Where that fails too, taskq.prune_stages does it once the lease is gone."""
        with self.route.connect() as conn:
            abandon_stage(conn, self.stage)

    def _carry_out(self, won: Sequence[Staged]) -> None:
        """One transaction: all of the job's decisions."""
        with self.route.connect() as conn:
            carry_out(conn, self.options, self.stage, won)
            if self.options.stage is None:  # else whoever opened the stage asks for its results first
                abandon_stage(conn, self.stage)


def stage_decisions(
    route: Route,
    options: SourceOptions,
    batches: Iterator[pa.RecordBatch],
    stage: str,
    context: TaskContext,
    stream: str = "",
) -> Staged:
    """One partition into taskq.staged, unless nobody will come for it."""
    number, part, attempt = UUID(stage).bytes, context.partitionId(), context.taskAttemptId()
    count = stage_rows(
        route,
        COPY,
        batches,
        lambda batch, _: staged_rows(batch, number, part, attempt),
        check_of(options, stage),
    )
    return Staged(part, attempt, count, stage, stream, query_of(context))


def check_of(options: SourceOptions, stage: str) -> tuple[str, tuple[object, ...]]:
    """What refuses to stage more where nobody will come for it, and its arguments: last in the transaction."""
    return "SELECT taskq.check_stage(%s::text, %s::bigint, %s::uuid)", (options.owner, options.fence, stage)


def carry_out(conn: psycopg.Connection[Any], options: SourceOptions, stage: str, won: Sequence[Staged]) -> None:
    """Ends what these tries decided, all in the caller's transaction."""
    with translate_errors():
        conn.execute(
            "SELECT taskq.complete_staged(%s::text, %s::bigint, %s::uuid, %s::int[], %s::bigint[], %s::bigint[])",
            (options.owner, options.fence, stage, *arrays(won)),
        )


def open_stage(conn: psycopg.Connection[Any], owner: str, fence: int | None) -> str:
    """The number of a new stage of this owner; forgets the stages of owners that are gone."""
    with translate_errors():
        conn.execute("SELECT taskq.prune_stages()")
        row = conn.execute("SELECT taskq.open_stage(%s::text, %s::bigint)::text", (owner, fence)).fetchone()
    assert row is not None  # noqa: S101
    return str(row[0])


def abandon_stage(conn: psycopg.Connection[Any], stage: str) -> None:
    """Forgets what was staged."""
    with translate_errors():
        conn.execute("SELECT taskq.abandon_stage(%s::uuid)", (stage,))
