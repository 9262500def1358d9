"""The writer of a drain through a composite: it runs the steps on executors, and stages what they decide.

A step may give functions to `work.in_commit` and `work.after_commit`, which the driver calls. They are pickled on the
executor and loaded by the driver. No DataFrame ever has these bytes: the writer that runs the steps puts them into its
own commit message, which Spark brings to `commit` of the same writer. A task is data for the steps, and the columns of
a transform's DataFrame go to another writer, which loads nothing. So neither can choose the bytes that are loaded.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Self

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import WriterCommitMessage

from airflow_provider_taskq.spark.commit import Company
from airflow_provider_taskq.spark.composite import ByComposite
from airflow_provider_taskq.spark.follow_ups import FollowUpWriter
from airflow_provider_taskq.spark.landing import land
from airflow_provider_taskq.spark.staging import Staged, winners
from airflow_provider_taskq.spark.writers import CompleteWriter


@dataclass(frozen=True, slots=True)
class StagedWithCompany(Staged):
    """What one try staged, and what its batches leave to the driver, pickled by `CompositeWriter.write`."""

    company: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, staged: Staged, company: list[bytes]) -> Self:
        """The same try, with what its batches leave to the driver."""
        return cls(**{each.name: getattr(staged, each.name) for each in fields(staged)}, company=tuple(company))


class CompositeWriter(FollowUpWriter):
    """The writer that takes tasks instead of decisions, and decides them by the steps of a composite.

    `pickled` is the `ByComposite` as the driver's program pickled it. It stays bytes until an executor runs it, as only
    executors need the modules of the steps.
    """

    def __init__(self, decisions: CompleteWriter, pickled: bytes) -> None:
        super().__init__(decisions)
        self.pickled = pickled

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Runs the steps on one partition and stages their decisions, on an executor."""
        transform: ByComposite = cloudpickle.loads(self.pickled)
        company: list[bytes] = []

        def carry(each: Company) -> None:
            company.append(each.pickled())

        staged = super().write(transform.decided(iterator, carry))
        return StagedWithCompany.of(staged, company) if company else staged

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commits the decisions, and calls what the steps left to the driver, on the driver."""
        company = [each for message in messages if isinstance(message, StagedWithCompany) for each in message.company]
        if company:
            land(self.decisions, winners(messages), company)
        else:
            super().commit(messages)
