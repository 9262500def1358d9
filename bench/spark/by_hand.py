"""What is written without a queue: a status table, Spark's JDBC source in parallel, and updates from each partition.

It is as fast as its kind gets: slices by the primary key, rows fetched by the ten thousand, pipelined and prepared
updates (psycopg's `executemany`), one transaction a partition, one index beside the key, on what is new.
`drained_without_index` has not even that: the updates cost least so, and whoever asks for what is new reads the whole
table, each time. What all of it lacks: nobody else may work on the table meanwhile, a partition that Spark tries again
updates again, and a driver that dies leaves half. `claimed_and_drained` marks the rows as its own first, so that two
may work at a time; still a partition counts twice where it runs twice, and the rows of a driver that died stay with it.
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
    """Works the new rows off; returns how many are done."""
    return _worked(spark, dsn, "new")


def drained_without_index(spark: SparkSession, dsn: str) -> int:
    """The same on a table with its key alone; returns how many are done."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("DROP INDEX status_new")
    return _worked(spark, dsn, "new")


def claimed_and_drained(spark: SparkSession, dsn: str) -> int:
    """Claims the new rows, and works those off; returns how many are done."""
    with psycopg.connect(dsn) as conn:
        conn.execute(_CLAIM)
    return _worked(spark, dsn, "mine")


def _worked(spark: SparkSession, dsn: str, state: str) -> int:
    with psycopg.connect(dsn, autocommit=True) as conn:
        low, high = conn.execute("SELECT min(id), max(id) FROM status WHERE state = %s", (state,)).fetchall()[0]
        decide(_rows_in(spark, dsn, state, low, high)).foreachPartition(partial(_update, dsn))
        return int(conn.execute("SELECT count(*) FROM status WHERE finished IS NOT NULL").fetchall()[0][0])


def _rows_in(spark: SparkSession, dsn: str, state: str, low: int, high: int) -> DataFrame:
    """The rows that are to be worked on, in slices."""
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
    """Notes what was decided on the rows of a partition."""
    with psycopg.connect(dsn) as conn:
        conn.cursor().executemany(_UPDATE, ((row.result, row.message, row.sequence) for row in rows))
