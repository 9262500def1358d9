"""writeStream with mode=complete: every micro-batch of decisions ends its tasks once."""

from collections.abc import Iterator, Sequence
from typing import Self
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from airflow_provider_taskq.queue.errors import translate_errors
from airflow_provider_taskq.spark.connection import Route
from airflow_provider_taskq.spark.encoding import check_columns
from airflow_provider_taskq.spark.options import SourceOptions
from airflow_provider_taskq.spark.staging import (
    Staged,
    batch_of,
    begins,
    derived_stage,
    this_try,
    until_answered,
    winners,
)
from airflow_provider_taskq.spark.writers import abandon_stage, carry_out, stage_decisions


class CompleteStreamWriter(DataSourceStreamArrowWriter):
    """Ends the tasks of each micro-batch together, and a batch that is replayed ends nothing again.

    They have to be held by the owner of the option `owner` until then, and somebody has to keep its lease. The number
    of the last batch is remembered with the decisions, under the name of the stream, in the same transaction.
    """

    def __init__(self, options: SourceOptions, seed: str, route: Route) -> None:
        self.options = options
        self.seed = seed
        self.route = route

    @classmethod
    def opened(cls, options: SourceOptions, schema: StructType, route: Route) -> Self:
        """The writer of one run of a stream, or of one of its commits."""
        check_columns({field.name: field.dataType.simpleString() for field in schema.fields})
        return cls(options, str(uuid4()), route)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stages one partition of one batch, on an executor."""
        context = this_try()
        batch = batch_of(context, self.options.stream)
        stage = str(derived_stage(self.seed, batch.number))
        return stage_decisions(self.route, self.options, iterator, stage, context, batch.stream)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        """Carries one batch out, on the driver, unless that was done before."""
        if won := winners(messages):
            until_answered(lambda: self._carry_out(won, batch))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:  # noqa: ARG002
        """Forgets what was staged, as far as it is known where; the rest goes with the lease."""
        for staged in winners(messages)[:1]:
            with self.route.connect() as conn:
                abandon_stage(conn, staged.stage)

    def _carry_out(self, won: Sequence[Staged], batch: int) -> None:
        """One transaction: the decisions, and that this batch is done."""
        with self.route.connect() as conn:
            with translate_errors():
                first = begins(conn, won[0].stream, batch, won[0].query)
            if first:
                carry_out(conn, self.options, won[0].stage, won)
            conn.commit()
            abandon_stage(conn, won[0].stage)
