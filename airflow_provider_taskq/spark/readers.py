"""mode=held: what an owner holds, as Arrow batches, read by many executors at once."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from airflow_provider_taskq.queue.errors import translate_errors
from airflow_provider_taskq.spark.binary_copy import record_batches
from airflow_provider_taskq.spark.connection import Route
from airflow_provider_taskq.spark.options import SourceOptions

HELD_SCHEMA = (
    StructType()
    .add("sequence", "long")
    .add("topic", "string")
    .add("identifier", "string")
    .add("payload", "string")
    .add("reference", "string")
    .add("attempt", "integer")
    .add("redelivered", "boolean")
    .add("priority", "integer")
    .add("created", "timestamp")
    .add("available_at", "timestamp")
)
_ARROW = pa.schema(
    [
        ("sequence", pa.int64()),
        ("topic", pa.string()),
        ("identifier", pa.string()),
        ("payload", pa.string()),
        ("reference", pa.string()),
        ("attempt", pa.int32()),
        ("redelivered", pa.bool_()),
        ("priority", pa.int32()),
        ("created", pa.timestamp("us", tz="UTC")),
        ("available_at", pa.timestamp("us", tz="UTC")),
    ]
)
_TOPIC = _ARROW.get_field_index("topic")


class HeldSlice(InputPartition):
    """A range of sequences, both ends included."""

    def __init__(self, low: int, high: int) -> None:
        self.low = low
        self.high = high


class HeldReader(DataSourceReader):
    """Reads the tasks that an owner holds of a topic.

    Reading takes nothing and changes nothing, so a second action, a task's retry, speculation and `show()` all see the
    same rows. They stay until the owner completes them; once its lease is gone every read fails with LeaseLost.
    """

    def __init__(self, options: SourceOptions, route: Route) -> None:
        self.options = options
        self.route = route

    def partitions(self) -> list[InputPartition]:
        """Ranges with equally many held tasks. Asked once, when the DataFrame is first planned."""
        asked = self.options
        with self.route.connect() as conn, translate_errors():
            bounds = conn.execute(
                "SELECT low, high FROM taskq.held_bounds(%s::text, %s::bigint, %s::text, %s::int)",
                (asked.owner, asked.fence, asked.topic, asked.partitions),
            )
            return [HeldSlice(low, high) for low, high in bounds]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The tasks of one range, streamed in bounded memory."""
        if not isinstance(partition, HeldSlice):  # Spark's stand-in where there are no partitions
            return
        asked = self.options
        schema = _ARROW if asked.topic is None else _ARROW.remove(_TOPIC)
        wanted = (asked.owner, asked.fence, asked.topic, partition.low, partition.high)
        with (
            self.route.connect_executor() as conn,
            translate_errors(),
            conn.cursor().copy(_copy(schema), wanted) as copy,
        ):
            for batch in record_batches(copy, schema):
                yield batch if asked.topic is None else _of_topic(batch, asked.topic)


def _copy(schema: pa.Schema) -> bytes:
    """The statement that sends these columns."""
    return (
        f"COPY (SELECT {', '.join(schema.names)}"  # noqa: S608
        " FROM taskq.held_slice(%s::text, %s::bigint, %s::text, %s::bigint, %s::bigint)) TO STDOUT (FORMAT binary)"
    ).encode()


def _of_topic(batch: pa.RecordBatch, topic: str) -> pa.RecordBatch:
    """The batch with the column that is the same in all rows, and so was not sent."""
    return batch.add_column(_TOPIC, _ARROW.field(_TOPIC), pa.repeat(topic, batch.num_rows))
