"""The Spark data source `taskq`."""

from typing import ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter
from pyspark.sql.types import StructType

from airflow_provider_taskq.queue import TaskQueueError
from airflow_provider_taskq.spark.options import SourceOptions
from airflow_provider_taskq.spark.reading import HELD_SCHEMA, HeldReader
from airflow_provider_taskq.spark.route import Route
from airflow_provider_taskq.spark.staging import CompleteWriter


class TaskQDataSource(DataSource):
    """What an owner holds as a DataFrame, and a DataFrame of decisions as its end.

        spark.dataSource.register(TaskQDataSource)
        held = {"owner": owner.name, "fence": owner.fence}
        tasks = spark.read.format("taskq").options(mode="held", **held).load()
        decisions.write.format("taskq").mode("append").options(mode="complete", **held).save()

    `topic` narrows what is read, `partitions` says in how many slices. A `fence` ties the DataFrame to one
    registration of the owner, and so locks out a job whose successor has registered the name anew. Without it the
    name is trusted: what is planned later than that, a write above all, goes under the successor's fence.

    The database is the one that TASKQ_DSN, TASKQ_DSN_FILE or libpq's environment named on the driver when its JVM
    started; `TaskQDataSource.bound(route)` makes a source for another. Executors are handed that route inside what
    they run, and one with a TASKQ_DSN of its own uses its own.
    """

    route: ClassVar[Route | None] = None

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "taskq"

    @classmethod
    def bound(cls, route: Route, name: str = "taskq") -> type["TaskQDataSource"]:
        """A source, under a name of its own, that takes this route whatever the environment says.

        A class made inside a function is pickled by value, so the route goes where the class goes: through the JVM's
        memory to the processes that plan, read and write, and past everything that is displayed or written down.
        """

        class BoundDataSource(TaskQDataSource):
            """The data source on one route."""

            @classmethod
            def name(cls) -> str:
                """The name of the format."""
                return name

        BoundDataSource.route = route
        return BoundDataSource

    def schema(self) -> StructType:
        """The columns of mode=held."""
        SourceOptions.parsed(self.options, "held")
        return HELD_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of mode=held."""
        options = SourceOptions.parsed(self.options, "held")
        if schema.simpleString() != HELD_SCHEMA.simpleString():
            raise TaskQueueError(f"format taskq, mode held: its schema is fixed: {HELD_SCHEMA.simpleString()}")
        route = self.route or Route.found()
        return HeldReader(options.fenced(route), route)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of mode=complete."""
        options = SourceOptions.parsed(self.options, "complete")
        if overwrite:
            raise TaskQueueError('format taskq, mode complete: decisions are added: use .mode("append")')
        route = self.route or Route.found()
        return CompleteWriter.opened(options.fenced(route), schema, route)
