"""Code without a queue: a status table, Spark's JDBC source in parallel, and updates from each partition.

It is as fast as this design allows: slices by the primary key, rows fetched by the ten thousand, pipelined and prepared
updates (psycopg's `executemany`), one transaction a partition, and an index on new rows. `drained_without_index` lacks
that index: its updates are cheapest, but a search for new rows reads the whole table.

The design has no safety: no other job may use the table at the same time, a partition that Spark runs twice is updated
twice, and a driver that dies leaves half of the work. `claimed_and_drained` marks its rows first, so that two jobs may
run at once; a repeated partition still counts twice, and the rows of a dead driver stay marked.
"""

from collections.abc import Iterable
from functools import partial

import psycopg
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import DataFrame, Row, SparkSession

from bench.spark.sites import DRIVER
from bench.spark.work import decide

SLICES = 8
FETCH = 10_000
ABSENT = f"There is no {DRIVER} (Debian's package libpostgresql-jdbc-java): the side by hand is left out."

_CLAIM = "UPDATE status SET state = 'mine', started = now() WHERE state = 'new'"
_UPDATE = "UPDATE status SET state = %s, message = %s, finished = now() WHERE id = %s"


def drained(spark: SparkSession, dsn: str) -> int:
    """Handles the new rows; returns their number."""
    return _worked(spark, dsn, "new")


def drained_without_index(spark: SparkSession, dsn: str) -> int:
    """The same on a table without the index on new rows; returns their number."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("DROP INDEX status_new")
    return _worked(spark, dsn, "new")


def claimed_and_drained(spark: SparkSession, dsn: str) -> int:
    """Claims the new rows, and handles the claimed ones; returns their number."""
    with psycopg.connect(dsn) as conn:
        conn.execute(_CLAIM)
    return _worked(spark, dsn, "mine")


def _worked(spark: SparkSession, dsn: str, state: str) -> int:
    with psycopg.connect(dsn, autocommit=True) as conn:
        low, high = conn.execute("SELECT min(id), max(id) FROM status WHERE state = %s", (state,)).fetchall()[0]
        decide(_rows_in(spark, dsn, state, low, high)).foreachPartition(partial(_update, dsn))
        return int(conn.execute("SELECT count(*) FROM status WHERE finished IS NOT NULL").fetchall()[0][0])


def _rows_in(spark: SparkSession, dsn: str, state: str, low: int, high: int) -> DataFrame:
    """The rows in a state, in slices by their key."""
    parts = conninfo_to_dict(dsn)
    return spark.read.jdbc(
        f"jdbc:postgresql://{parts['host']}:{parts['port']}/{parts['dbname']}",
        f"(SELECT id AS sequence, identifier, payload::text FROM status WHERE state = '{state}') AS wanted",
        column="sequence",
        lowerBound=low,
        upperBound=high + 1,
        numPartitions=SLICES,
        properties={
            "user": str(parts["user"]),
            "password": str(parts.get("password", "")),
            "driver": "org.postgresql.Driver",
            "fetchsize": str(FETCH),
        },
    )


def _update(dsn: str, rows: Iterable[Row]) -> None:
    with psycopg.connect(dsn) as conn:
        conn.cursor().executemany(_UPDATE, ((row.result, row.message, row.sequence) for row in rows))
