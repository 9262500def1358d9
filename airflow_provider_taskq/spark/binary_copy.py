"""Converts PostgreSQL's binary COPY to and from Arrow, column by column, without a Python object for each value.

A row is the number of its fields and then, for each field, its length (-1: NULL) and its bytes. The positions of all
fields of a column follow from those of the previous column. So NumPy computes them for all rows of a batch at once.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

BATCH_ROWS = 10_000
BATCH_BYTES = 8 * 1024 * 1024
SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"

_EPOCH = 946_684_800_000_000  # PostgreSQL counts microseconds from 2000, Arrow from 1970
# Spark has no infinity, and its timestamps lie in the years 1 to 9999.
_LAST = 253_402_300_799_999_999
_FIRST = -62_135_596_800_000_000

Chunk = bytes | bytearray | memoryview


def record_batches(messages: Iterable[Chunk], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield Arrow batches from the messages of a binary COPY. PostgreSQL sends one row in each message."""
    data, sizes = bytearray(), []
    rows = iter(messages)
    # The signature precedes the first row, or the trailer if there is no row.
    first = memoryview(next(rows, b""))[len(SIGNATURE) :]
    for row in chain((first,), rows):
        size = len(row)
        if size > len(TRAILER):
            data += row  # joined here: a list of thousands of messages costs more than the parsing
            sizes.append(size)
            if len(sizes) >= BATCH_ROWS or len(data) >= BATCH_BYTES:
                yield _parsed(data, sizes, schema)
                data, sizes = bytearray(), []
    if sizes:
        yield _parsed(data, sizes, schema)


def _parsed(held: bytearray, sizes: list[int], schema: pa.Schema) -> pa.RecordBatch:
    data, lengths = np.frombuffer(held, dtype=np.uint8), np.array(sizes, dtype=np.int64)
    places = np.cumsum(lengths) - lengths + 2  # two bytes hold the number of fields
    columns = []
    for field in schema:
        extents = _big_endian(data, places, np.int32)
        begins = places + 4
        places = begins + np.maximum(extents, 0)
        columns.append(_column(data, begins, extents, field.type))
    return pa.record_batch(columns, schema=schema)


def _column(data: Any, begins: Any, sizes: Any, kind: pa.DataType) -> pa.Array:
    missing = sizes < 0
    if missing.all():
        return pa.nulls(len(sizes), kind)
    if kinds.is_string(kind):
        return _texts(data, begins, begins + np.maximum(sizes, 0), missing)
    begins = np.where(missing, 0, begins)  # any valid position
    if kinds.is_boolean(kind):
        return pa.array(data[begins] != 0, mask=missing)
    if kinds.is_timestamp(kind):
        values = _big_endian(data, begins, np.int64)
        clipped = np.clip(values, _FIRST - _EPOCH, _LAST - _EPOCH) + _EPOCH
        return pa.array(clipped, mask=missing).cast(kind)
    return pa.array(_big_endian(data, begins, kind.to_pandas_dtype()), mask=missing, type=kind)


def _texts(data: Any, begins: Any, ends: Any, missing: Any) -> pa.Array:
    # An array of all texts and of the bytes between them needs no copy. Every other element is a text.
    places = np.empty(2 * len(begins), dtype=np.int32)
    places[0::2], places[1::2] = begins, ends
    every = pa.StringArray.from_buffers(len(places) - 1, pa.py_buffer(places), pa.py_buffer(data))
    return every.take(pa.array(np.arange(0, len(places), 2), mask=missing))


def _big_endian(data: Any, places: Any, kind: Any) -> Any:
    """Return the big-endian numbers that begin at these positions."""
    # The data as overlapping numbers, of which one begins at each byte.
    wire = np.dtype(kind).newbyteorder(">")
    every = np.ndarray((max(0, len(data) - wire.itemsize + 1),), wire, data, strides=(1,))
    return every[places].astype(kind)


def binary_rows(columns: Iterable[Any]) -> pa.Buffer:
    """Encode columns as the rows of a binary COPY, without its signature and trailer.

    Texts and bytes are copied. Whole numbers keep the width of their Arrow type. Timestamps become timestamptz, and
    durations become interval.
    """
    given = [column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column for column in columns]
    fields = pa.scalar(len(given).to_bytes(2, "big"), pa.binary())
    cells = [cell for column in given for cell in _cells(column)]
    rows = pc.binary_join_element_wise(fields, *cells, pa.scalar(b"", pa.binary()))
    begin, end = (int(place) for place in np.frombuffer(rows.buffers()[1], dtype=np.int32)[[0, len(rows)]])
    return rows.buffers()[2].slice(begin, end - begin)


def _cells(column: pa.Array) -> list[pa.Array]:
    """Return the parts of a column's fields: lengths and bytes, apart for texts and joined for other types."""
    count = len(column)
    if column.null_count == count:
        return [pa.scalar(b"\xff\xff\xff\xff", pa.binary())]
    if kinds.is_string(column.type) or kinds.is_binary(column.type):
        lengths = pc.fill_null(pc.binary_length(column), -1)
        return [_fixed(_numbers(lengths).astype(">i4")), pc.fill_null(column.cast(pa.binary()), b"")]
    values = _encoded(column)
    width = values.dtype.itemsize
    row = np.empty(count, dtype=[("size", ">i4"), ("value", values.dtype)])
    row["size"], row["value"] = width, values
    cells = _fixed(row)
    return [cells if not column.null_count else pc.if_else(column.is_valid(), cells, b"\xff\xff\xff\xff")]


def _encoded(column: pa.Array) -> Any:
    """Return values of a fixed width as PostgreSQL reads them. The value in place of a NULL does not matter."""
    kind = column.type
    if kinds.is_boolean(kind):
        return _numbers(column.cast(pa.int8())).astype("i1")
    if kinds.is_timestamp(kind):
        return (_numbers(column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())) - _EPOCH).astype(">i8")
    if kinds.is_duration(kind):
        micros = _numbers(column.cast(pa.duration("us")).cast(pa.int64()))
        spans = np.zeros(len(micros), dtype=[("micros", ">i8"), ("days", ">i4"), ("months", ">i4")])
        spans["micros"] = micros
        return spans
    return _numbers(column).astype(f">i{kind.bit_width // 8}")


def _numbers(column: pa.Array) -> Any:
    return pc.fill_null(column, 0).to_numpy(zero_copy_only=False)  # NumPy has no missing integers


def _fixed(values: Any) -> pa.Array:
    """Return NumPy values as Arrow binaries of one width."""
    width = values.dtype.itemsize
    places = np.arange(0, (len(values) + 1) * width, width, dtype=np.int32)
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(values), [None, pa.py_buffer(places), pa.py_buffer(np.ascontiguousarray(values))]
    )
