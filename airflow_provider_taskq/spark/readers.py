"""Batch readers: mode=held reads the tasks that an owner holds, mode=tasks reads all tasks of a topic."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Self

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from airflow_provider_taskq.queue import State, TaskQueueError
from airflow_provider_taskq.queue.jobs import TaskRange
from airflow_provider_taskq.spark.binary_copy import record_batches
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.options import HeldOptions, parse_flag, parse_options, parse_partitions, require


def spark_schema(columns: str) -> StructType:
    """Return the schema of columns such as "sequence long, topic string", without a Spark session."""
    schema = StructType()
    for column in columns.split(", "):
        name, kind = column.split()
        schema.add(name, kind)
    return schema


_COMMON = (
    "sequence long, topic string, identifier string, payload string, reference string, attempt integer,"
    " redelivered boolean"
)
HELD_SCHEMA = spark_schema(f"{_COMMON}, priority integer, created timestamp, available_at timestamp")
TASKS_SCHEMA = spark_schema(
    f"{_COMMON}, state string, descent string, status string, owner string, crashes integer, priority integer,"
    " created timestamp, available_at timestamp, completed timestamp, output string, error string"
)
LARGE_COLUMNS = ("payload", "output")
_ARROW_TYPES = {
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
    "double": pa.float64(),
    "int": pa.int32(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_MICROSECOND = timedelta(microseconds=1)
_MAX_BIGINT = 2**63 - 1
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")  # characters that PostgreSQL can neither store nor compare


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of a Spark schema."""
    # Not Spark's own to_arrow_schema: its parameters differ between Spark 4.1 and 4.2.
    return pa.schema([(field.name, _ARROW_TYPES[field.dataType.simpleString()]) for field in schema.fields])


_HELD_ARROW = arrow_schema(HELD_SCHEMA)
_TOPIC = _HELD_ARROW.get_field_index("topic")


@dataclass(eq=False)
class SequenceRange(InputPartition):
    """A range of sequences, both ends included."""

    low: int
    high: int


@dataclass(eq=False)
class HeldReader(DataSourceReader):
    """Reads the tasks that an owner holds.

    Reading changes nothing. So a second action, a retried or speculative Spark task, and `show()` read the same rows
    until the owner completes the tasks. A read raises LeaseLost if the owner's lease is gone.
    """

    options: HeldOptions
    connection_info: ConnectionInfo

    def partitions(self) -> list[InputPartition]:
        """Return ranges with equal numbers of tasks. Spark calls this once, when it first plans the DataFrame."""
        options = self.options
        with self.connection_info.queue() as queue:
            bounds = queue.held_bounds(options.lease, options.topic, options.partitions, options.until)
        return [SequenceRange(each.low, each.high) for each in bounds]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the tasks of one range in batches of bounded memory, on an executor."""
        if not isinstance(partition, SequenceRange):  # Spark's placeholder if there are no partitions
            return
        options = self.options
        # With the option `topic`, the column topic has one value, which the database need not send.
        schema = _HELD_ARROW if options.topic is None else _HELD_ARROW.remove(_TOPIC)
        with (
            self.connection_info.executor_queue() as queue,
            queue.held_slice(
                schema.names, options.lease, options.topic, partition.low, partition.high, options.until
            ) as copy,
        ):
            for batch in record_batches(copy, schema):
                if options.topic is None:
                    yield batch
                else:
                    topics = pa.repeat(options.topic, batch.num_rows)
                    yield batch.add_column(_TOPIC, _HELD_ARROW.field(_TOPIC), topics)


@dataclass(frozen=True, slots=True)
class TasksOptions:
    """Options of mode=tasks. `payload`: whether to read the large columns `payload` and `output`, too."""

    topic: str
    payload: bool
    partitions: int

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Parse the options. Raises TaskQueueError for one that is missing, unknown or invalid."""
        values = parse_options(options, "tasks", "read", {"topic", "payload", "partitions"})
        return cls(
            topic=require(values, "tasks", "topic"),
            payload=parse_flag(values.get("payload", "false"), "payload"),
            partitions=parse_partitions(values),
        )

    def schema(self) -> StructType:
        """Return the columns of a read whose query sets no schema."""
        if self.payload:
            return TASKS_SCHEMA
        return StructType([field for field in TASKS_SCHEMA.fields if field.name not in LARGE_COLUMNS])


@dataclass(slots=True)
class PushedFilters(TaskRange):
    """The filters that the database applies instead of Spark.

    A filter is accepted only if the database applies it exactly, because Spark does not apply it again.
    """

    @property
    def match_nothing(self) -> bool:
        """Whether the filters exclude every task."""
        return self.states == frozenset() or self.identifiers == frozenset()

    def accept(self, pushed: Any) -> bool:
        """Add a filter of Spark, and return True; return False if Spark has to apply it."""
        kind, column = type(pushed).__name__, ".".join(getattr(pushed, "attribute", ()))
        if kind == "IsNotNull":
            return column in ("state", "identifier", "sequence", "created")
        if kind in ("EqualTo", "EqualNullSafe", "In") and column in ("state", "identifier"):
            return self._accept_set(column, pushed.value if kind == "In" else (pushed.value,))
        if kind in ("EqualTo", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual"):
            return self._accept_bound(column, kind, pushed.value)
        return False

    def _accept_set(self, column: str, values: Sequence[Any]) -> bool:
        if not all(isinstance(value, str) and _UNSTORABLE.search(value) is None for value in values):
            return False
        if column == "state":
            states = frozenset(int(State[name]) for name in values if name in State.__members__)
            self.states = states if self.states is None else self.states & states
        else:
            names = frozenset(values)
            self.identifiers = names if self.identifiers is None else self.identifiers & names
        return True

    def _accept_bound(self, column: str, kind: str, value: Any) -> bool:
        if column == "sequence" and type(value) is int and abs(value) < _MAX_BIGINT:
            low, high = _bounds(kind, value, 1)
            self.low, self.high = _greatest(self.low, low), _least(self.high, high)
            return True
        if column == "created" and isinstance(value, datetime) and value.tzinfo is not None:
            try:
                since, until = _bounds(kind, value, _MICROSECOND)
            except OverflowError:  # Python has no moment beyond this one
                return False
            self.since, self.until = _greatest(self.since, since), _least(self.until, until)
            return True
        return False


def _bounds(kind: str, value: Any, step: Any) -> tuple[Any, Any]:
    """Return the least and the greatest value that pass a comparison. None is no bound."""
    return {
        "EqualTo": (value, value),
        "GreaterThan": (value + step, None),
        "GreaterThanOrEqual": (value, None),
        "LessThan": (None, value - step),
        "LessThanOrEqual": (None, value),
    }[kind]


def _greatest(*values: Any) -> Any:
    return max((value for value in values if value is not None), default=None)


def _least(*values: Any) -> Any:
    return min((value for value in values if value is not None), default=None)


class TasksReader(DataSourceReader):
    """Reads the tasks of a topic: the columns of the schema, and the rows that pass the pushed filters.

    Filters on `state`, `identifier`, `sequence` and `created` are pushed down if
    spark.sql.python.filterPushdown.enabled is on. This reader cannot warn if it is off: the process that plans a read
    cannot read the setting, and does not see whether the query has filters.

    Ranges of sequences are planned once, so a task that is pushed later is not read. Each range is one statement, so a
    task is read at most once, in a state that it had during the job. The ranges do not share a snapshot. A second
    action may read other states.
    """

    def __init__(self, options: TasksOptions, schema: StructType, connection_info: ConnectionInfo) -> None:
        for field in schema.fields:
            if field.name not in TASKS_SCHEMA.names or field.dataType != TASKS_SCHEMA[field.name].dataType:
                raise TaskQueueError(
                    f"format taskq, mode tasks: unknown column {field.name} {field.dataType.simpleString()}:"
                    f" use columns of {TASKS_SCHEMA.simpleString()}"
                )
        self.options = options
        self.arrow = arrow_schema(schema)
        self.connection_info = connection_info
        self.filters = PushedFilters()

    @property
    def pushFilters(self) -> Any:  # noqa: N802
        """The callable to which Spark passes the filters of the query, if filter pushdown is on.

        If it is off, which is the default, Spark fails a read whose reader overrides this method. To find out, Spark
        compares the attribute `__func__` of the method with the function of the base class.
        """

        def push(filters: list[Any]) -> Iterable[Any]:
            return [each for each in filters if not self.filters.accept(each)]

        push.__func__ = DataSourceReader.pushFilters  # type: ignore[attr-defined]
        return push

    def partitions(self) -> list[InputPartition]:
        """Return ranges with equal numbers of tasks. Spark calls this once, when it first plans the DataFrame."""
        if self.filters.match_nothing:
            return []
        with self.connection_info.queue() as queue:
            bounds = queue.task_bounds(self.options.topic, self.filters, self.options.partitions)
        return [SequenceRange(each.low, each.high) for each in bounds]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the tasks of one range in batches of bounded memory, on an executor."""
        if not isinstance(partition, SequenceRange):  # Spark's placeholder if there are no partitions
            return
        names = self.arrow.names or ["sequence"]
        tasks = replace(self.filters, low=partition.low, high=partition.high)
        bulky = any(name in LARGE_COLUMNS for name in names)
        with (
            self.connection_info.executor_queue() as queue,
            queue.task_slice(names, self.options.topic, tasks, bulky=bulky) as copy,
        ):
            yield from record_batches(copy, self.arrow)
