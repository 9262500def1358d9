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


def test_values_are_copied_in_unchanged(conn: psycopg.Connection, given: pa.Table) -> None:
    copy_in(conn, given)
    query = (
        "SELECT small, whole, large, flag, words, bytes, at, (extract(epoch FROM span) * 1000000)::bigint FROM kinds"
    )
    spans = [None if row[7] is None else row[7] // timedelta(microseconds=1) for row in ROWS]
    assert conn.execute(f"{query} ORDER BY number".encode()).fetchall() == [
        (*row[:7], span) for row, span in zip(ROWS, spans, strict=True)
    ]


def test_only_the_rows_of_a_sliced_batch_are_copied(conn: psycopg.Connection, given: pa.Table) -> None:
    copy_in(conn, given.slice(1, 2))
    assert conn.execute("SELECT whole, words FROM kinds ORDER BY number").fetchall() == [
        (row[1], row[4]) for row in ROWS[1:3]
    ]


def test_values_are_copied_out_unchanged(conn: psycopg.Connection, given: pa.Table) -> None:
    copy_in(conn, given)
    statement = f"COPY (SELECT {', '.join(READABLE.names)} FROM kinds ORDER BY number) TO STDOUT (FORMAT binary)"
    with conn.cursor().copy(statement.encode()) as copy:
        found = pa.Table.from_batches(record_batches(copy, READABLE))
    found.validate(full=True)
    assert found == given.select(READABLE.names)


@pytest.mark.parametrize("columns", [READABLE.names, ["whole"]])
def test_an_empty_result_yields_no_batch(conn: psycopg.Connection, columns: list[str]) -> None:
    schema = pa.schema([READABLE.field(name) for name in columns])
    with conn.cursor().copy(
        f"COPY (SELECT {', '.join(columns)} FROM kinds) TO STDOUT (FORMAT binary)".encode()
    ) as copy:
        assert list(record_batches(copy, schema)) == []


def test_an_infinite_timestamp_becomes_the_last_one_of_spark(conn: psycopg.Connection) -> None:
    conn.execute("INSERT INTO kinds (at) VALUES ('infinity'), ('-infinity')")
    with conn.cursor().copy("COPY (SELECT at FROM kinds ORDER BY number) TO STDOUT (FORMAT binary)") as copy:
        [batch] = record_batches(copy, pa.schema([ARROW.field("at")]))
    assert batch.column("at").to_pylist() == [ROWS[1][6], ROWS[0][6]]


@pytest.mark.parametrize("name", READABLE.names)
def test_a_row_of_nulls_is_copied(conn: psycopg.Connection, name: str) -> None:
    conn.execute("INSERT INTO kinds (span) VALUES (NULL)")
    with conn.cursor().copy(f"COPY (SELECT {name} FROM kinds) TO STDOUT (FORMAT binary)".encode()) as copy:
        [batch] = record_batches(copy, pa.schema([READABLE.field(name)]))
    assert batch.column(name).to_pylist() == [None]
