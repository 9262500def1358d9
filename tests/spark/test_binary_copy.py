"""Binary COPY to and from Arrow keeps every value."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pyarrow as pa
import pytest

from airflow_provider_taskq.queue import connect
from airflow_provider_taskq.spark.binary_copy import SIGNATURE, TRAILER, binary_rows, record_batches

pytestmark = pytest.mark.promise("A payload comes back as it was pushed, or is refused")

TABLE = "small smallint, whole int, large bigint, flag boolean, words text, bytes bytea, at timestamptz, span interval"
ARROW = pa.schema(
    [
        ("small", pa.int16()),
        ("whole", pa.int32()),
        ("large", pa.int64()),
        ("flag", pa.bool_()),
        ("words", pa.string()),
        ("bytes", pa.binary()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("span", pa.duration("us")),
    ]
)
READABLE = pa.schema([field for field in ARROW if field.name not in ("bytes", "span")])
ROWS = [
    (-(2**15), -(2**31), -(2**63), True, "", b"", datetime(1, 1, 1, tzinfo=UTC), timedelta(days=-400_000)),
    (
        2**15 - 1,
        2**31 - 1,
        2**63 - 1,
        False,
        "ü 😀\n\t",
        b"\x00\xff",
        datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC),
        None,
    ),
    (None, None, None, None, None, None, None, timedelta(microseconds=1)),
    (0, 0, 0, None, "x" * 100_000, b"\xff\xff", datetime(1970, 1, 1, tzinfo=UTC), timedelta(hours=25)),
    (1, None, 2, True, "PGCOPY\n", None, datetime(2000, 1, 1, tzinfo=UTC), timedelta(0)),
]


@pytest.fixture
def given() -> pa.Table:
    """The rows of all kinds."""
    columns = [pa.array([row[place] for row in ROWS], field.type) for place, field in enumerate(ARROW)]
    return pa.table(columns, schema=ARROW)


@pytest.fixture
def conn(dsn: str) -> Iterator[psycopg.Connection]:
    """A session with a table of all kinds."""
    with connect(dsn) as found:
        found.execute(f"CREATE TEMPORARY TABLE kinds (number serial, {TABLE})".encode())
        yield found


def copy_in(conn: psycopg.Connection, table: pa.Table) -> None:
    with conn.cursor().copy(
        f"COPY kinds ({', '.join(table.column_names)}) FROM STDIN (FORMAT binary)".encode()
    ) as copy:
        copy.write(SIGNATURE)
        copy.write(memoryview(binary_rows(table.columns)))
        copy.write(TRAILER)


def copied_out(conn: psycopg.Connection, query: str, *names: str) -> list[pa.RecordBatch]:
    with conn.cursor().copy(f"COPY ({query}) TO STDOUT (FORMAT binary)".encode()) as copy:
        return list(record_batches(copy, pa.schema([READABLE.field(name) for name in names])))


@pytest.mark.parametrize("rows", [slice(0, len(ROWS)), slice(1, 3)], ids=["all", "of a sliced batch"])
def test_values_are_copied_in_and_out_unchanged(conn: psycopg.Connection, given: pa.Table, rows: slice) -> None:
    copy_in(conn, given.slice(rows.start, rows.stop - rows.start))
    epoch = "(extract(epoch FROM span) * 1000000)::bigint"
    stored = conn.execute(
        f"SELECT small, whole, large, flag, words, bytes, at, {epoch} FROM kinds ORDER BY number".encode()
    )
    microsecond = timedelta(microseconds=1)
    assert stored.fetchall() == [(*row[:7], None if row[7] is None else row[7] // microsecond) for row in ROWS[rows]]
    batches = copied_out(conn, f"SELECT {', '.join(READABLE.names)} FROM kinds ORDER BY number", *READABLE.names)
    found = pa.Table.from_batches(batches)
    found.validate(full=True)
    assert found == given.slice(rows.start, rows.stop - rows.start).select(READABLE.names)


@pytest.mark.parametrize("columns", [READABLE.names, ["whole"]])
def test_an_empty_result_yields_no_batch(conn: psycopg.Connection, columns: list[str]) -> None:
    assert copied_out(conn, f"SELECT {', '.join(columns)} FROM kinds", *columns) == []


def test_an_infinite_timestamp_becomes_the_last_one_of_spark(conn: psycopg.Connection) -> None:
    conn.execute("INSERT INTO kinds (at) VALUES ('infinity'), ('-infinity')")
    [batch] = copied_out(conn, "SELECT at FROM kinds ORDER BY number", "at")
    assert batch.column("at").to_pylist() == [ROWS[1][6], ROWS[0][6]]
