"""mode=complete: executors stage decisions, the driver carries them out in one transaction."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import psycopg
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from airflow_provider_taskq.queue import TaskQueueError
from airflow_provider_taskq.queue.errors import translated
from airflow_provider_taskq.spark.decisions import COPY, check_columns, staged_rows
from airflow_provider_taskq.spark.options import SourceOptions
from airflow_provider_taskq.spark.route import Route

COMMIT_SECONDS = 60.0  # how long a commit goes on asking a server that has gone away
PAUSE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Staged(WriterCommitMessage):
    """What one try of one Spark task staged."""

    part: int
    attempt: int
    count: int


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
        context = TaskContext.get()
        if context is None:
            raise TaskQueueError("decisions are staged by Spark's tasks only")
        part, attempt = context.partitionId(), context.taskAttemptId()
        first = next((batch for batch in iterator if batch.num_rows), None)
        if first is None:
            return Staged(part, attempt, 0)
        count = first.num_rows
        with self.route.connect_executor() as conn, translated():
            with conn.cursor().copy(COPY) as copy:
                copy.write(staged_rows(first, self.stage, part, attempt))
                for batch in iterator:
                    copy.write(staged_rows(batch, self.stage, part, attempt))
                    count += batch.num_rows
            conn.execute(
                "SELECT taskq.check_stage(%s::text, %s::bigint, %s::uuid)",
                (self.options.owner, self.options.fence, self.stage),
            )
        return Staged(part, attempt, count)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Carries the stage out, on the driver.

        A stage is carried out once however often that is asked for, so a server that went away is simply asked again.
        """
        won = [message for message in messages if isinstance(message, Staged)]
        deadline = time.monotonic() + COMMIT_SECONDS
        while True:
            try:
                self._carry_out(won)
            except (psycopg.OperationalError, TaskQueueError) as error:
                if not _is_absence(error) or time.monotonic() > deadline:
                    raise
                time.sleep(PAUSE_SECONDS)  # the server is away: nothing tells when it is back
            else:
                return

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Forgets what was staged. Where that fails too, taskq.prune_stages does it once the lease is gone."""
        with self.route.connect() as conn:
            abandon_stage(conn, self.stage)

    def _carry_out(self, won: Sequence[Staged]) -> None:
        """One transaction: all of the job's decisions."""
        with self.route.connect() as conn, translated():
            conn.execute(
                "SELECT taskq.complete_staged(%s::text, %s::bigint, %s::uuid, %s::int[], %s::bigint[], %s::bigint[])",
                (
                    self.options.owner,
                    self.options.fence,
                    self.stage,
                    [staged.part for staged in won],
                    [staged.attempt for staged in won],
                    [staged.count for staged in won],
                ),
            )
            if self.options.stage is None:  # else whoever opened the stage asks for its results first
                abandon_stage(conn, self.stage)


def open_stage(conn: psycopg.Connection[Any], owner: str, fence: int | None) -> str:
    """The number of a new stage of this owner; forgets the stages of owners that are gone."""
    with translated():
        conn.execute("SELECT taskq.prune_stages()")
        row = conn.execute("SELECT taskq.open_stage(%s::text, %s::bigint)::text", (owner, fence)).fetchone()
    assert row is not None  # noqa: S101
    return str(row[0])


def abandon_stage(conn: psycopg.Connection[Any], stage: str) -> None:
    """Forgets what was staged."""
    with translated():
        conn.execute("SELECT taskq.abandon_stage(%s::uuid)", (stage,))


def _is_absence(error: Exception) -> bool:
    """Whether the server was away or shutting down, rather than of another opinion."""
    if isinstance(error, psycopg.OperationalError):
        return (error.sqlstate or "08").startswith(("08", "57P"))
    return str(error).startswith("cannot connect")
