"""The data source as a drain uses it: on a route of its own, and with follow-ups."""

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceWriter
from pyspark.sql.types import StructType

from airflow_provider_taskq.spark.draining.follow_ups import COLUMNS, FollowUpWriter
from airflow_provider_taskq.spark.route import Route
from airflow_provider_taskq.spark.source.complete_writer import CompleteWriter
from airflow_provider_taskq.spark.source.data_source import TaskQDataSource

_routes: list[Route] = []


def registered_name(spark: SparkSession, route: Route) -> str:
    """Registers the data source on this route under a name of its own, and returns the name.

    So drains to different databases in one session don't take each other's, and the session's own `taskq` stays.
    """
    if route not in _routes:
        _routes.append(route)
    name = f"taskq_drain_{_routes.index(route) + 1}"
    spark.dataSource.register(_source(route, name))
    return name


def _source(route: Route, name: str) -> type[TaskQDataSource]:
    """A class made inside a function is pickled by value, and the route with it (see `TaskQDataSource.bound`)."""

    class DrainSource(TaskQDataSource.bound(route, name)):  # type: ignore[misc]
        """The data source of drains."""

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            """The writer of decisions, with follow-ups where they have columns for these."""
            decisions = StructType([each for each in schema.fields if each.name not in COLUMNS])
            if len(decisions.fields) == len(schema.fields) or self.options.get("mode") != "complete":
                return TaskQDataSource.writer(self, schema, overwrite)
            writer = TaskQDataSource.writer(self, decisions, overwrite)
            assert isinstance(writer, CompleteWriter)  # noqa: S101
            return FollowUpWriter(writer)

    return DrainSource
