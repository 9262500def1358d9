"""mode=tasks: every task of a topic with its state, read by many executors at once, changing nothing."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from airflow_provider_taskq.queue import TaskQueueError
from airflow_provider_taskq.queue.errors import translate_errors
from airflow_provider_taskq.spark.binary_copy import record_batches
from airflow_provider_taskq.spark.connection import Route
from airflow_provider_taskq.spark.options import PARTITIONS, flag, known, number
from airflow_provider_taskq.spark.readers import HeldSlice
from airflow_provider_taskq.spark.tasks_filters import Narrowing

TASKS_SCHEMA = (
    StructType()
    .add("sequence", "long")
    .add("topic", "string")
    .add("identifier", "string")
    .add("payload", "string")
    .add("reference", "string")
    .add("attempt", "integer")
    .add("redelivered", "boolean")
    .add("state", "string")
    .add("descent", "string")
    .add("status", "string")
    .add("owner", "string")
    .add("crashes", "integer")
    .add("priority", "integer")
    .add("created", "timestamp")
    .add("available_at", "timestamp")
    .add("completed", "timestamp")
    .add("output", "string")
    .add("error", "string")
)
BULKY = ("payload", "output")
_ARROW = {  # Spark's own to_arrow_schema has other parameters in 4.2 than in 4.1
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


@dataclass(frozen=True, slots=True)
class TasksOptions:
    """Which topic is read, and whether with the JSON that tasks came and ended with."""

    topic: str
    payload: bool
    partitions: int

    @classmethod
    def parsed(cls, options: Mapping[str, str]) -> Self:
        """The options of mode=tasks; a sentence for each that is missing, unknown or nonsense."""
        given = known(options, "tasks", "read", {"topic", "payload", "partitions"})
        if not given.get("topic"):
            raise TaskQueueError("format taskq, mode tasks: option 'topic' is missing")
        return cls(
            topic=given["topic"],
            payload=flag(given.get("payload", "false"), "payload"),
            partitions=number(given.get("partitions", str(PARTITIONS)), "partitions"),
        )

    def schema(self) -> StructType:
        """The columns where none are named by `.schema(...)`."""
        if self.payload:
            return TASKS_SCHEMA
        return StructType([field for field in TASKS_SCHEMA.fields if field.name not in BULKY])


class _Quiet:
    """A `pushFilters` that Spark does not refuse where spark.sql.python.filterPushdown.enabled is off, its default.

    Spark compares the function behind the method with that of the base class, and fails a read with another one while
    the setting is off; with the setting on it calls the method whatever it is.
    """

    def __init__(self, reader: "TasksReader") -> None:
        self.reader = reader
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Any]) -> Iterable[Any]:
        """The filters that Spark still has to apply."""
        return self.reader.narrow(filters)


class TasksReader(DataSourceReader):
    """Reads the tasks of a topic, sending no more of them than is asked for.

    That is the columns of the schema, and with spark.sql.python.filterPushdown.enabled the rows that filters on
    `state`, `identifier`, `sequence` and `created` let through. While that is off nobody can be told so from here: the
    process that plans has neither a session nor a task's properties, and does not learn whether there were filters.

    Ranges of sequences are planned once: what is pushed later is not read. Each range is one look at the moment when
    Spark reads it, so that a task comes once at most, in a state that it had during the job; the ranges are not one
    snapshot together, and another action may see other states.
    """

    def __init__(self, options: TasksOptions, schema: StructType, route: Route) -> None:
        for field in schema.fields:
            if field.name not in TASKS_SCHEMA.names or field.dataType != TASKS_SCHEMA[field.name].dataType:
                raise TaskQueueError(
                    f"format taskq, mode tasks: there is no column {field.name} {field.dataType.simpleString()};"
                    f" its columns are among {TASKS_SCHEMA.simpleString()}"
                )
        self.options = options
        self.arrow = pa.schema([(field.name, _ARROW[field.dataType.simpleString()]) for field in schema.fields])
        self.route = route
        self.narrowing = Narrowing()

    @property
    def pushFilters(self) -> Any:  # noqa: N802
        """See `narrow`."""
        return _Quiet(self)

    def narrow(self, filters: list[Any]) -> Iterable[Any]:
        """Takes on the filters that the database applies exactly, and returns the others."""
        return [each for each in filters if not self.narrowing.takes(each)]

    def partitions(self) -> list[InputPartition]:
        """Ranges with equally many tasks. Asked once, when the DataFrame is first planned."""
        if self.narrowing.impossible:
            return []
        low, high, *others = self.narrowing.arguments()
        with self.route.connect() as conn, translate_errors():
            bounds = conn.execute(
                "SELECT low, high FROM taskq.task_bounds(%s::text, %s::bigint, %s::bigint, %s::int[], %s::text[],"
                " %s::timestamptz, %s::timestamptz, %s::int)",
                (self.options.topic, low, high, *others, self.options.partitions),
            )
            return [HeldSlice(low, high) for low, high in bounds]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The tasks of one range, streamed in bounded memory."""
        if not isinstance(partition, HeldSlice):  # Spark's stand-in where there are no partitions
            return
        names = self.arrow.names
        columns = ", ".join(names) if names else "sequence"
        statement = (
            f"COPY (SELECT {columns} FROM taskq.task_slice(%s::text, %s::bigint, %s::bigint, %s::int[], %s::text[],"  # noqa: S608
            " %s::timestamptz, %s::timestamptz, %s::boolean)) TO STDOUT (FORMAT binary)"
        )
        bulky = any(name in BULKY for name in names)
        wanted = (self.options.topic, partition.low, partition.high, *self.narrowing.arguments()[2:], bulky)
        with (
            self.route.connect_executor() as conn,
            translate_errors(),
            conn.cursor().copy(statement.encode(), wanted) as copy,
        ):
            yield from record_batches(copy, self.arrow)
