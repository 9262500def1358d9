"""The Spark data source `taskq`."""

from collections.abc import Mapping
from typing import ClassVar

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StringType, StructField, StructType

from airflow_provider_taskq.queue import TaskQueueError
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.options import HeldOptions, PushOptions, parse_mode
from airflow_provider_taskq.spark.readers import HELD_SCHEMA, HeldReader, TasksOptions, TasksReader, spark_schema
from airflow_provider_taskq.spark.staging import Rows
from airflow_provider_taskq.spark.streams import LOG_SCHEMA, LogOptions, LogReader
from airflow_provider_taskq.spark.transforms import DECISION_SCHEMA
from airflow_provider_taskq.spark.writers import BatchWriter, StreamWriter, decisions, new_tasks

_OPTIONS = "taskq"  # the metadata of a column with the options of its table
_PUSH_SCHEMA = spark_schema(
    "identifier string, payload string, reference string, suspended boolean, available_at timestamp,"
    " delay double, ttl double, priority integer, depends_on string"
)
_registered: list[ConnectionInfo] = []


class TaskQDataSource(DataSource):
    """Reads and writes tasks as DataFrames and streams, by the option `mode`.

    * `spark.read`: `held`, the tasks that an owner holds; `tasks`, all tasks of a topic with their states.
    * `df.write`: `push` turns rows into tasks; `complete` completes tasks that an owner holds, by decisions.
    * `spark.readStream`: `log`, the tasks of a topic in the order in which they were pushed, without claiming them.
    * `df.writeStream`: `push` and `complete`, once for each micro-batch.

        spark.dataSource.register(TaskQDataSource)
        held = {"owner": owner.name, "fence": owner.fence}
        tasks = spark.read.format("taskq").options(mode="held", **held).load()
        decisions.write.format("taskq").mode("append").options(mode="complete", **held).save()

    In mode `held`, `topic` restricts the tasks, and `partitions` sets the number of partitions. `fence` ties the
    DataFrame to one registration of the owner: a job fails after a later registration has taken the name over. Without
    a fence, each read or write uses the registration that is current when Spark plans it.

    The driver's environment (TASKQ_DSN, TASKQ_DSN_FILE or libpq's variables) names the database, as it was when the
    driver's JVM started. For another database, register `TaskQDataSource.with_connection(...)`. Executors receive the
    connection parameters with the code that they run. An executor with its own TASKQ_DSN uses that DSN.

    In SQL, CREATE TEMPORARY VIEW ... USING taskq OPTIONS (...) and CREATE TABLE make names for reading and, with the
    modes of a write, for INSERT INTO. Spark stores only the columns of such a table. So its columns carry the options.
    """

    connection_info: ClassVar[ConnectionInfo | None] = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "taskq"

    @classmethod
    def with_connection(cls, info: ConnectionInfo, name: str = "taskq") -> type["TaskQDataSource"]:
        """Return a data source for one database, under a format name of its own."""
        # Spark pickles a class that no module has by value. So the connection parameters travel with the class to the
        # processes that plan, read and write, and appear in no option, plan or log.
        own = {"__module__": __name__, "connection_info": info, "name": classmethod(lambda _: name)}
        return type("ConnectedDataSource", (cls,), own)

    def schema(self) -> StructType:
        """Return the columns of a read, or in SQL those of a name for INSERT INTO."""
        # CREATE TABLE passes the properties of the table. Its options are those that begin so.
        table = {name[7:].lower(): value for name, value in self.options.items() if name.lower().startswith("option.")}
        columns = _columns_of(table or self.options)
        metadata = {_OPTIONS: table} if table else None
        return StructType([StructField(each.name, each.dataType, True, metadata) for each in columns.fields])

    def _options_of(self, schema: StructType) -> Mapping[str, str]:
        """Return the options of a read or write: if they have no mode, after those that the columns carry."""
        given = {name.lower(): value for name, value in self.options.items()}
        carried = [each.metadata[_OPTIONS] for each in schema.fields if _OPTIONS in each.metadata]
        return {**carried[0], **given} if carried and "mode" not in given else given

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of mode=held or mode=tasks."""
        options, connection = self._options_of(schema), self._connection()
        if parse_mode(options, "read", ("held", "tasks")) == "tasks":
            return TasksReader(TasksOptions.parse(options), schema, connection)
        held = HeldOptions.parse(options, "held")
        _check_schema(schema, HELD_SCHEMA, "held")
        return HeldReader(held.with_fence(connection), connection)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of mode=push or mode=complete."""
        return BatchWriter.open(self._rows(schema, overwrite, '.mode("append")'), schema, self._connection())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of mode=log."""
        options = self._options_of(schema)
        parse_mode(options, "read a stream", ("log",))
        _check_schema(schema, LOG_SCHEMA, "log")
        return LogReader(LogOptions.parse(options), self._connection())

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the stream writer of mode=push or mode=complete."""
        return StreamWriter.open(self._rows(schema, overwrite, '.outputMode("append")'), schema, self._connection())

    def _rows(self, schema: StructType, overwrite: bool, append: str) -> Rows:
        options = self._options_of(schema)
        mode = parse_mode(options, "write", ("push", "complete"))
        if overwrite:
            raise TaskQueueError(f"format taskq, mode {mode}: cannot overwrite: use {append}")
        if mode == "push":
            return new_tasks(PushOptions.parse(options))
        return decisions(HeldOptions.parse(options, "complete").with_fence(self._connection()))

    def _connection(self) -> ConnectionInfo:
        return self.connection_info or ConnectionInfo.resolve()


def _columns_of(options: Mapping[str, str]) -> StructType:
    mode = parse_mode(options, "use the format", ("tasks", "held", "log", "push", "complete"))
    if mode == "tasks":
        return TasksOptions.parse(options).schema()
    if mode == "push":
        pushed = PushOptions.parse(options)
        return _PUSH_SCHEMA if pushed.topic else StructType([StructField("topic", StringType()), *_PUSH_SCHEMA.fields])
    if mode == "log":
        LogOptions.parse(options)
        return LOG_SCHEMA
    HeldOptions.parse(options, mode)
    return HELD_SCHEMA if mode == "held" else spark_schema(DECISION_SCHEMA)


def _check_schema(schema: StructType, fixed: StructType, mode: str) -> None:
    if schema.simpleString() != fixed.simpleString():
        raise TaskQueueError(f"format taskq, mode {mode}: the schema cannot be changed: {fixed.simpleString()}")


def register_source(spark: SparkSession, connection_info: ConnectionInfo) -> str:
    """Register the data source with this connection, and return the name of its format.

    Each database has its own format name. So drains of several databases, and the format `taskq`, can share a session.
    """
    if connection_info not in _registered:
        _registered.append(connection_info)
    name = f"taskq_drain_{_registered.index(connection_info) + 1}"
    spark.dataSource.register(TaskQDataSource.with_connection(connection_info, name))
    return name
