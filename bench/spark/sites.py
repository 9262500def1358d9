"""Databases and sessions of the Spark benchmarks: one database is filled, and each figure gets a copy of it."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count as numbers
from pathlib import Path
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_taskq.queue import TaskQueue, connect
from airflow_provider_taskq.spark import drain
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.data_source import register_source
from bench.rig import Rig
from demo.flights import flights

TOPIC = "bench"
OWNER = "bench"
WARM = 20_000
ROOT = Path(__file__).parents[2]
DRIVER = Path("/usr/share/java/postgresql.jar")

STATUS = """
CREATE TABLE status (id bigint PRIMARY KEY, identifier text NOT NULL, payload json, state text NOT NULL DEFAULT 'new',
                     message text, started timestamptz, finished timestamptz);
CREATE INDEX status_new ON status (id) WHERE state = 'new';
INSERT INTO status (id, identifier, payload) SELECT sequence, identifier, payload FROM taskq_internal.task
    ORDER BY sequence;
"""

_sites = numbers(1)


class Site:
    """A filled database of which copies are made, so that each figure is taken on the same pages."""

    def __init__(self, rig: Rig, template: str) -> None:
        self.rig = rig
        self.template = template
        self.server_pid = _server_pid(rig)

    @contextmanager
    def copy(self) -> Iterator[str]:
        """The DSN of a copy, after a checkpoint: otherwise the server would still write pages of the last one."""
        name = f"{self.template}_{next(_sites)}"
        with psycopg.connect(self.rig.server_dsn, autocommit=True) as admin:
            make = "CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy"
            admin.execute(sql.SQL(make).format(sql.Identifier(name), sql.Identifier(self.template)))
            admin.execute("CHECKPOINT")
            try:
                yield make_conninfo(self.rig.server_dsn, dbname=name)
            finally:
                admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def filled(rig: Rig, count: int, *, claimed: bool = False) -> Iterator[Site]:
    """A database with `count` flights as tasks, and the same flights in a status table written by hand."""
    with rig.database() as dsn:
        with connect(dsn, autocommit=True) as conn:
            queue = TaskQueue(conn)
            queue.create_topic(TOPIC)
            queue.push_stream(TOPIC, flights(count))
            conn.execute(STATUS.encode())
            if claimed:
                owner = queue.register(OWNER, timedelta(hours=9))
                queue.claim(TOPIC, owner, count)
            conn.execute("VACUUM ANALYZE")
        yield Site(rig, str(conninfo_to_dict(dsn)["dbname"]))


@contextmanager
def session(rig: Rig, cores: int = 2) -> Iterator[SparkSession]:
    """A session on this number of cores, warmed up, so that no figure contains the start of processes."""
    os.environ.update(PYSPARK_PYTHON=sys.executable, PYTHONPATH=str(ROOT), SPARK_LOCAL_IP="127.0.0.1")
    builder = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("taskq bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.log.level", "ERROR")
    )
    if DRIVER.exists():
        builder = builder.config("spark.driver.extraClassPath", str(DRIVER))
    spark = builder.getOrCreate()
    try:
        _warm(rig, spark)
        yield spark
    finally:
        spark.stop()


def held_source(spark: SparkSession, dsn: str) -> str:
    """The format `taskq`, registered for one database."""
    return register_source(spark, ConnectionInfo.resolve(dsn, executors_may_override=False))


def _warm(rig: Rig, spark: SparkSession) -> None:
    with rig.database() as dsn:
        with connect(dsn, autocommit=True) as conn:
            TaskQueue(conn).create_topic(TOPIC)
            TaskQueue(conn).push_stream(TOPIC, flights(WARM))
        drain(spark, TOPIC, str(uuid4()), _succeed, dsn=dsn, rounds=None, size=WARM // 2)


def _succeed(tasks: DataFrame) -> DataFrame:
    return tasks.selectExpr("sequence", "'SUCCESS' AS result")


def _server_pid(rig: Rig) -> int | None:
    """The server's process, if this process has started it on this machine."""
    with psycopg.connect(rig.server_dsn) as conn:
        row = conn.execute("SELECT pg_read_file('postmaster.pid', 0, 20)").fetchone()
    pid = int(str(row[0]).split()[0]) if row else 0
    return pid if Path(f"/proc/{pid}/exe").exists() else None
