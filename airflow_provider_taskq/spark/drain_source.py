"""The data source as a drain uses it: on a route of its own, and with follow-ups."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceWriter
from pyspark.sql.types import LongType, StringType, StructField, StructType

from airflow_provider_taskq.queue import TaskQueueError
from airflow_provider_taskq.spark.batches import check_names
from airflow_provider_taskq.spark.composite import ByComposite
from airflow_provider_taskq.spark.composite_writer import CompositeWriter
from airflow_provider_taskq.spark.connection import Route
from airflow_provider_taskq.spark.data_source import TaskQDataSource
from airflow_provider_taskq.spark.follow_ups import COLUMNS, FollowUpWriter
from airflow_provider_taskq.spark.transforms import OF_A_TASK
from airflow_provider_taskq.spark.writers import CompleteWriter

_DECISIONS = StructType([StructField("sequence", LongType()), StructField("result", StringType())])

_routes: list[Route] = []
_busy: set[int] = set()
_lock = threading.Lock()


def registered_name(spark: SparkSession, route: Route) -> str:
    """Registers the data source on this route under a name of its own, and returns the name.

    So drains to different databases in one session don't take each other's, and the session's own `taskq` stays.
    """
    if route not in _routes:
        _routes.append(route)
    name = f"taskq_drain_{_routes.index(route) + 1}"
    spark.dataSource.register(_source(route, name))
    return name


@contextmanager
def composite_format(spark: SparkSession, route: Route, transform: ByComposite) -> Iterator[str]:
    """Registers a data source whose writer decides tasks by a composite; yields the name of its format.

    No other drain uses the name until the block ends. Spark has no call to remove a data source, so names are used
    again: a session has as many as drains ran in it at once.
    """
    with _lock:
        number = next(each for each in count(1) if each not in _busy)
        _busy.add(number)
    try:
        name = f"taskq_composite_{number}"
        pickled = cloudpickle.dumps(transform)  # type: ignore[no-untyped-call]
        spark.dataSource.register(_composite_source(route, name, pickled))
        yield name
    finally:
        with _lock:
            _busy.discard(number)


def _source(route: Route, name: str) -> type[TaskQDataSource]:
    """A class made inside a function is pickled by value, and the route with it (see `TaskQDataSource.bound`)."""

    class DrainSource(TaskQDataSource.bound(route, name)):  # type: ignore[misc]
        """The data source of drains."""

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            """The writer of decisions, with follow-ups where they have columns for these."""
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


def _composite_source(route: Route, name: str, pickled: bytes) -> type[TaskQDataSource]:
    """A class made inside a function is pickled by value, and the composite with it."""

    class CompositeSource(TaskQDataSource.bound(route, name)):  # type: ignore[misc]
        """The data source of one drain through a composite."""

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            """The writer of tasks, which decides them."""
            if self.options.get("mode") != "complete" or schema.names != list(OF_A_TASK):
                raise TaskQueueError(f"format {name} takes the tasks of one drain: call drain() with the composite")
            writer = TaskQDataSource.writer(self, _DECISIONS, overwrite)
            assert isinstance(writer, CompleteWriter)  # noqa: S101
            return CompositeWriter(writer, pickled)

    return CompositeSource
