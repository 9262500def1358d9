"""Runs in the environment that has adbc: reads held tasks, and stages decisions and tasks, by adbc and by our COPY."""

import json
import sys
import time
from collections.abc import Callable
from statistics import median
from uuid import uuid4

import psycopg
import pyarrow as pa
from adbc_driver_postgresql import dbapi  # type: ignore[import-not-found]

from airflow_provider_taskq.spark.binary_copy import SIGNATURE, TRAILER, binary_rows, record_batches

COLUMNS = (
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
)
SCHEMA = pa.schema(COLUMNS)
HELD = f"SELECT {', '.join(SCHEMA.names)} FROM taskq.held_slice('%s', %s, 'bench', 1, 9223372036854775807)"
ROWS = 10_000
LONGEST = 46


class Both:
    """Reads and writes of one database by adbc and by our COPY, each on a connection that stays open."""

    def __init__(self, dsn: str, owner: str, fence: int) -> None:
        self.held = HELD % (owner, fence)
        self.ours = psycopg.connect(dsn, autocommit=True)
        self.adbc = dbapi.connect(dsn, autocommit=True)
        self.adbc.cursor().execute("SET client_min_messages = warning")

    def read_by_copy(self) -> int:
        """Reads the held tasks into Arrow batches; returns the number of rows."""
        with self.ours.cursor().copy(f"COPY ({self.held}) TO STDOUT (FORMAT binary)".encode()) as copy:
            return sum(batch.num_rows for batch in record_batches(copy, SCHEMA))

    def read_by_adbc(self) -> int:
        """Reads the held tasks into Arrow batches; returns the number of rows."""
        with self.adbc.cursor() as cursor:
            cursor.execute(self.held)
            return sum(batch.num_rows for batch in cursor.fetch_record_batch())

    def write_by_copy(self, table: str, rows: pa.Table) -> int:
        """Encodes the rows and sends them batch by batch; returns their number."""
        statement = f"COPY taskq.{table} ({', '.join(rows.column_names)}) FROM STDIN (FORMAT binary)"
        with self.ours.cursor().copy(statement.encode()) as copy:
            copy.write(SIGNATURE)
            for batch in rows.to_batches(ROWS):
                copy.write(memoryview(binary_rows(batch.columns)))
            copy.write(TRAILER)
        return int(rows.num_rows)

    def write_by_adbc(self, table: str, rows: pa.Table) -> int:
        """Ingests the rows; returns their number."""
        with self.adbc.cursor() as cursor:
            cursor.adbc_ingest(table, rows.to_reader(ROWS), mode="append", db_schema_name="taskq")
        return int(rows.num_rows)


def main() -> None:
    """Prints medians; the rounds are interleaved."""
    request = json.load(sys.stdin)
    both = Both(request["dsn"], request["owner"], request["fence"])
    tasks = _held(both)
    decisions = _decisions(tasks)
    pushes = _pushes(tasks)
    works: dict[str, Callable[[], int]] = {
        "read held tasks: our COPY": both.read_by_copy,
        "read held tasks: adbc": both.read_by_adbc,
        "stage decisions: our COPY": lambda: both.write_by_copy("staged", decisions),
        "stage decisions: adbc": lambda: both.write_by_adbc("staged", decisions),
        "stage tasks: our COPY": lambda: both.write_by_copy("staged_task", pushes),
        "stage tasks: adbc": lambda: both.write_by_adbc("staged_task", pushes),
    }
    figures: dict[str, list[float]] = {name: [] for name in works}
    for number in range(request["rounds"] + 1):
        for name in list(works) if number % 2 == 0 else list(works)[::-1]:
            both.ours.execute("TRUNCATE taskq.staged, taskq.staged_task")
            rate = _rate(works[name], tasks.num_rows)
            figures[name] += [rate] if number else []  # the first round warms up
    for name, rates in figures.items():
        spread = f"[{min(rates):,.0f}-{max(rates):,.0f}]"
        print(f"  {name:<{LONGEST}} {median(rates):>10,.0f}/s {spread:>20}", flush=True)


def _rate(work: Callable[[], int], count: int) -> float:
    start = time.perf_counter()
    done = work()
    seconds = time.perf_counter() - start
    if done != count:
        raise RuntimeError(f"{done} of {count} rows went through")
    return count / seconds


def _held(both: Both) -> pa.Table:
    with both.ours.cursor().copy(f"COPY ({both.held}) TO STDOUT (FORMAT binary)".encode()) as copy:
        return pa.Table.from_batches(list(record_batches(copy, SCHEMA)))


def _decisions(tasks: pa.Table) -> pa.Table:
    """As mode=complete stages them."""
    count = tasks.num_rows
    messages = pa.array([f'{{"lost": {number % 100}}}' for number in range(count)])
    return pa.table({**_place(count), "sequence": tasks["sequence"], "result": _numbers(3, count), "output": messages})


def _pushes(tasks: pa.Table) -> pa.Table:
    """As mode=push stages them."""
    count = tasks.num_rows
    place = pa.array(range(count), pa.int64())
    return pa.table({**_place(count), "place": place, "identifier": tasks["identifier"], "payload": tasks["payload"]})


def _place(count: int) -> dict[str, pa.Array]:
    """The columns that identify the attempt of the rows. A UUID and 16 bytes are the same on the wire."""
    stage = pa.repeat(pa.scalar(uuid4().bytes, pa.binary()), count)
    return {
        "stage": stage,
        "part": pa.repeat(pa.scalar(0, pa.int32()), count),
        "attempt": pa.repeat(pa.scalar(1, pa.int64()), count),
    }


def _numbers(value: int, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.int16()), count)


if __name__ == "__main__":
    main()
