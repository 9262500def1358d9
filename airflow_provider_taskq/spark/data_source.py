"""The Spark data source `taskq`."""

from typing import ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from airflow_provider_taskq.queue import TaskQueueError
from airflow_provider_taskq.spark.connection import Route
from airflow_provider_taskq.spark.options import SourceOptions, mode_of
from airflow_provider_taskq.spark.push_writer import PushOptions, PushStreamWriter, PushWriter
from airflow_provider_taskq.spark.readers import HELD_SCHEMA, HeldReader
from airflow_provider_taskq.spark.stream_complete import CompleteStreamWriter
from airflow_provider_taskq.spark.streams import LOG_SCHEMA, LogOptions, LogReader
from airflow_provider_taskq.spark.tasks_reader import TasksOptions, TasksReader
from airflow_provider_taskq.spark.writers import CompleteWriter


class TaskQDataSource(DataSource):
    """Tasks as DataFrames and streams, by `mode`.

    * `spark.read`: `held`, what an owner holds; `tasks`, every task of a topic with its state.
    * `df.write`: `push`, rows become tasks; `complete`, decisions end the tasks that an owner holds.
    * `spark.readStream`: `log`, the tasks of a topic in the order in which they came in, taking none.
    * `df.writeStream`: `push` and `complete`, each micro-batch once.

        spark.dataSource.register(TaskQDataSource)
        held = {"owner": owner.name, "fence": owner.fence}
        tasks = spark.read.format("taskq").options(mode="held", **held).load()
        decisions.write.format("taskq").mode("append").options(mode="complete", **held).save()

    Of `held`: `topic` narrows what is read, `partitions` says in how many slices. A `fence` ties the DataFrame to one
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
        """The columns of what is read."""
        mode = mode_of(self.options, "read", ("held", "tasks", "log"))
        if mode == "tasks":
            return TasksOptions.parsed(self.options).schema()
        if mode == "log":
            LogOptions.parsed(self.options)
            return LOG_SCHEMA
        SourceOptions.parsed(self.options, "held")
        return HELD_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of mode=held and mode=tasks."""
        if mode_of(self.options, "read", ("held", "tasks")) == "tasks":
            return TasksReader(TasksOptions.parsed(self.options), schema, self._found())
        options = SourceOptions.parsed(self.options, "held")
        _need_schema(schema, HELD_SCHEMA, "held")
        route = self._found()
        return HeldReader(options.fenced(route), route)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of mode=push and mode=complete."""
        mode = mode_of(self.options, "write", ("push", "complete"))
        if overwrite:
            added = "decisions" if mode == "complete" else "tasks"
            raise TaskQueueError(f'format taskq, mode {mode}: {added} are added: use .mode("append")')
        if mode == "push":
            return PushWriter.opened(PushOptions.parsed(self.options), schema, self._found())
        options, route = SourceOptions.parsed(self.options, "complete"), self._found()
        return CompleteWriter.opened(options.fenced(route), schema, route)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """The reader of a topic's log."""
        mode_of(self.options, "read a stream", ("log",))
        options = LogOptions.parsed(self.options)
        _need_schema(schema, LOG_SCHEMA, "log")
        return LogReader(options, self._found())

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """The writer of a stream of tasks or of decisions."""
        mode = mode_of(self.options, "write a stream", ("push", "complete"))
        if overwrite:
            raise TaskQueueError(f'format taskq, mode {mode}: rows are added: use .outputMode("append")')
        if mode == "push":
            return PushStreamWriter.opened(PushOptions.parsed(self.options), schema, self._found())
        options, route = SourceOptions.parsed(self.options, "complete"), self._found()
        return CompleteStreamWriter.opened(options.fenced(route), schema, route)

    def _found(self) -> Route:
        """The way to the database."""
        return self.route or Route.found()


def _need_schema(schema: StructType, fixed: StructType, mode: str) -> None:
    """Refuses another schema than the one that a mode has."""
    if schema.simpleString() != fixed.simpleString():
        raise TaskQueueError(f"format taskq, mode {mode}: its schema is fixed: {fixed.simpleString()}")
