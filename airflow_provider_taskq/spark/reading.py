"""mode=held: what an owner holds, as Arrow batches, read by many executors at once."""

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.csv
import pyarrow.types
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from airflow_provider_taskq.queue.errors import translated
from airflow_provider_taskq.spark.options import SourceOptions
from airflow_provider_taskq.spark.route import Route

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
)
BATCH_ROWS = 10_000
BATCH_BYTES = 8 * 1024 * 1024

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
    ]
)
# A moment crosses as microseconds since 1970, which is what Arrow stores.
_COLUMNS = ", ".join(_ARROW.names).replace("created", "(extract(epoch FROM created) * 1000000)::bigint")
_COPY = (
    f"COPY (SELECT {_COLUMNS} FROM taskq.held_slice(%s::text, %s::bigint, %s::text, %s::bigint, %s::bigint))"  # noqa: S608
    " TO STDOUT (FORMAT csv, ENCODING 'UTF8')"
)


Chunk = bytes | bytearray | memoryview


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
        with self.route.connect() as conn, translated():
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
        wanted = (asked.owner, asked.fence, asked.topic, partition.low, partition.high)
        with self.route.connect_executor() as conn, translated(), conn.cursor().copy(_COPY, wanted) as copy:
            yield from record_batches(copy)


def record_batches(rows: Iterable[Chunk]) -> Iterator[pa.RecordBatch]:
    """Arrow batches from the rows of a COPY, of which PostgreSQL sends exactly one a message."""
    held: list[Chunk] = []
    size = 0
    for row in rows:
        held.append(row)
        size += len(row)
        if len(held) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield _parsed(held, size)
            held, size = [], 0
    if held:
        yield _parsed(held, size)


def _parsed(rows: list[Chunk], size: int) -> pa.RecordBatch:
    """One batch from whole CSV rows. They are one block of the parser, so that no row is too long for it."""
    raw = [pa.int64() if pa.types.is_timestamp(field.type) else field.type for field in _ARROW]
    table = pyarrow.csv.read_csv(
        pa.BufferReader(b"".join(rows)),
        read_options=pyarrow.csv.ReadOptions(column_names=_ARROW.names, block_size=size + 1, use_threads=False),
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=dict(zip(_ARROW.names, raw, strict=True)),
            null_values=[""],  # COPY quotes a text that is empty, and leaves out one that is missing
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["t"],
            false_values=["f"],
        ),
    )
    return table.cast(_ARROW).combine_chunks().to_batches()[0]
