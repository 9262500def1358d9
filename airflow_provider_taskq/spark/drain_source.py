"""The data source of a drain: with the drain's own connection, with follow-ups, and with the steps of a composite."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceWriter
from pyspark.sql.types import LongType, StringType, StructField, StructType

from airflow_provider_taskq.queue import TaskQueueError
from airflow_provider_taskq.spark.composite import CompositeTransform, CompositeWriter
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.data_source import TaskQDataSource
from airflow_provider_taskq.spark.follow_ups import COLUMNS, FollowUpWriter
from airflow_provider_taskq.spark.transforms import TASK_COLUMNS, check_names
from airflow_provider_taskq.spark.writers import CompleteWriter

_DECISIONS = StructType([StructField("sequence", LongType()), StructField("result", StringType())])

_registered: list[ConnectionInfo] = []
_busy: set[int] = set()
_lock = threading.Lock()


def register_source(spark: SparkSession, connection_info: ConnectionInfo) -> str:
    """Registers the data source with this connection, and returns the name of its format.

    Each database has its own format name, so drains to several databases can share a session with its `taskq` format.
    """
    if connection_info not in _registered:
        _registered.append(connection_info)
    name = f"taskq_drain_{_registered.index(connection_info) + 1}"
    spark.dataSource.register(_drain_source(connection_info, name))
    return name


@contextmanager
def composite_source(
    spark: SparkSession, connection_info: ConnectionInfo, transform: CompositeTransform
) -> Iterator[str]:
    """Registers a data source whose writer decides tasks by a composite; yields the name of its format.

    No other drain uses the name until the block ends. Spark cannot remove a data source, so names are reused: a
    session has as many of them as it had drains at the same time.
    """
    with _lock:
        number = next(each for each in count(1) if each not in _busy)
        _busy.add(number)
    try:
        name = f"taskq_composite_{number}"
        pickled = cloudpickle.dumps(transform)  # type: ignore[no-untyped-call]
        spark.dataSource.register(_composite_source(connection_info, name, pickled))
        yield name
    finally:
        with _lock:
            _busy.discard(number)


# Both functions define a class, as Python pickles such a class by value: see `TaskQDataSource.with_connection`.


def _drain_source(connection_info: ConnectionInfo, name: str) -> type[TaskQDataSource]:
    class DrainSource(TaskQDataSource.with_connection(connection_info, name)):  # type: ignore[misc]
        """The data source of drains."""

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            """The writer of decisions, with follow-ups if the schema has columns for them."""
            if self.options.get("mode") != "complete":
                return TaskQDataSource.writer(self, schema, overwrite)
            check_names(schema.names)
            decisions = StructType([each for each in schema.fields if each.name not in COLUMNS])
            writer = TaskQDataSource.writer(self, decisions, overwrite)
            if len(decisions.fields) == len(schema.fields):
                return writer
            assert isinstance(writer, CompleteWriter)  # noqa: S101
            return FollowUpWriter(writer)

    return DrainSource


def _composite_source(connection_info: ConnectionInfo, name: str, pickled: bytes) -> type[TaskQDataSource]:
    class CompositeSource(TaskQDataSource.with_connection(connection_info, name)):  # type: ignore[misc]
        """The data source of one drain through a composite."""

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            """The writer that gets tasks, and decides them."""
            if self.options.get("mode") != "complete" or schema.names != list(TASK_COLUMNS):
                raise TaskQueueError(f"format {name} takes the tasks of one drain: call drain() with the composite")
            writer = TaskQDataSource.writer(self, _DECISIONS, overwrite)
            assert isinstance(writer, CompleteWriter)  # noqa: S101
            return CompositeWriter(writer, pickled)

    return CompositeSource
