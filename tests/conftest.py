"""One PostgreSQL server a session, one database a test, made from a template that holds the schema."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from hypothesis import settings
from psycopg import sql
from psycopg.conninfo import make_conninfo

from airflow_provider_taskq.queue import Owner, TaskQueue, connect, install
from demo.postgres import EmbeddedPostgres
from tests.spark.session import python_environment, spark, spark_log

__all__ = ["python_environment", "spark", "spark_log"]  # fixtures that pytest finds here

settings.register_profile("taskq", deadline=None)  # what takes long on a busy machine is not wrong
settings.load_profile("taskq")

TEMPLATE = f"taskq_template_{os.getpid()}"

# Tests lose nothing that matters when the machine goes down, and start a database each.
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_prepared_transactions": "8"}


@pytest.fixture(scope="session")
def server_dsn() -> Iterator[str]:
    """A server to make databases on: TASKQ_TEST_DSN, one of the programs in TASKQ_TEST_PROGRAMS, or an embedded one."""
    if given := os.environ.get("TASKQ_TEST_DSN"):
        yield given
        return
    programs = os.environ.get("TASKQ_TEST_PROGRAMS")
    with EmbeddedPostgres(settings=FAST, programs=Path(programs) if programs else None) as server:
        yield server.dsn


@pytest.fixture(scope="session")
def template(server_dsn: str) -> Iterator[str]:
    """The name of a database with the schema installed, which no test connects to."""
    _create_database(server_dsn, TEMPLATE)
    with connect(make_conninfo(server_dsn, dbname=TEMPLATE)) as conn:
        install(conn)
    yield TEMPLATE
    _drop_database(server_dsn, TEMPLATE)


@pytest.fixture
def dsn(server_dsn: str, template: str) -> Iterator[str]:
    """A fresh database with the schema and no topic."""
    name = f"taskq_test_{uuid4().hex[:12]}"
    _create_database(server_dsn, name, template)
    yield make_conninfo(server_dsn, dbname=name)
    _drop_database(server_dsn, name)


@pytest.fixture
def empty_dsn(server_dsn: str) -> Iterator[str]:
    """A fresh database without the schema."""
    name = f"taskq_test_{uuid4().hex[:12]}"
    _create_database(server_dsn, name)
    yield make_conninfo(server_dsn, dbname=name)
    _drop_database(server_dsn, name)


@pytest.fixture
def conn(dsn: str) -> Iterator[psycopg.Connection]:
    """A connection in autocommit: every verb is its own transaction."""
    with connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def open_queue(dsn: str) -> Iterator[Callable[[], TaskQueue]]:
    """Opens one more session on the test's database, whose transaction stays open until `end` or `undo`."""
    connections: list[psycopg.Connection] = []

    def opened() -> TaskQueue:
        connections.append(connect(dsn))
        return TaskQueue(connections[-1])

    yield opened
    for connection in connections:
        connection.close()


@pytest.fixture
def queue(conn: psycopg.Connection) -> TaskQueue:
    """A queue with a topic `work`."""
    queue = TaskQueue(conn)
    queue.create_topic("work")
    return queue


@pytest.fixture
def owner(queue: TaskQueue) -> Owner:
    """An owner with the usual lease."""
    return queue.register("owner")


def _create_database(server_dsn: str, name: str, template: str = "template0") -> None:
    with psycopg.connect(server_dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template)))


def _drop_database(server_dsn: str, name: str) -> None:
    with psycopg.connect(server_dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return Path(__file__).parent.parent
