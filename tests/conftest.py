"""One PostgreSQL server a session; on it one database that is emptied for each test, and others for single tests."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import FrameType
from uuid import uuid4

import psutil
import psycopg
import pytest
from hypothesis import settings
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus

from airflow_provider_taskq.queue import Owner, TaskQueue, connect, install
from demo.postgres import EmbeddedPostgres
from tests.durations import LongTests
from tests.groups import in_order_of_groups, make_scheduler
from tests.internals import SCHEMAS, empty_queue
from tests.spark.session import python_environment, spark, spark_log

__all__ = ["python_environment", "spark", "spark_log"]  # fixtures that pytest finds here

settings.register_profile("taskq", deadline=None)  # a slow test on a busy machine is not a failure
settings.load_profile("taskq")

TEMPLATE = f"taskq_template_{os.getpid()}"

# Tests lose nothing that matters when the machine goes down, and start a database each.
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_prepared_transactions": "8"}
FAST |= {"max_wal_size": "512MB", "wal_level": "logical"}  # it may be in memory; tables may be published

# On a disk, to make a database of 400 files costs ten times as much CPU.
MEMORY = Path("/dev/shm")  # noqa: S108 -- the server makes a folder of its own
ROOM = 4 << 30  # bytes that have to be free for one server; its log may take max_wal_size of them


def pytest_configure(config: pytest.Config) -> None:
    """Ends pytest on SIGTERM as on Ctrl-C, so that fixtures stop what they started. Lists tests that take long."""
    signal.signal(signal.SIGTERM, _interrupt)
    for number in (signal.SIGINT, signal.SIGHUP):  # nohup and `&` ignore them, and programs inherit that
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    inside_xdist = hasattr(config, "workerinput")
    if config.pluginmanager.has_plugin("cacheprovider") and not inside_xdist:
        config.pluginmanager.register(LongTests(config))
    for name in ("COLUMNS", "LINES"):  # readline sets them in the processes of pytest-xdist, which have no terminal
        os.environ.pop(name, None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of the Spark session as slow, and puts all in the order of their groups."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")
    items[:] = in_order_of_groups(items)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Lets each process take the next group."""
    return make_scheduler(config, log)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def memory() -> Path | None:
    """The folder of the system whose files are in memory, if it has room for the servers of all processes."""
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    free = min(shutil.disk_usage(MEMORY).free if MEMORY.is_dir() else 0, psutil.virtual_memory().available)
    return MEMORY if free > ROOM * processes else None


@pytest.fixture(scope="session")
def server_dsn() -> Iterator[str]:
    """A server to make databases on: TASKQ_TEST_DSN, one of the programs in TASKQ_TEST_PROGRAMS, or an embedded one."""
    if given := os.environ.get("TASKQ_TEST_DSN"):
        yield given
        return
    programs = os.environ.get("TASKQ_TEST_PROGRAMS")
    with EmbeddedPostgres(parent=memory(), settings=FAST, programs=Path(programs) if programs else None) as server:
        _hash_password_cheaply(server.dsn)
        yield server.dsn


@pytest.fixture(scope="session")
def template(server_dsn: str) -> Iterator[str]:
    """The name of a database with the schema installed, which no test connects to."""
    _create_database(server_dsn, TEMPLATE)
    with connect(make_conninfo(server_dsn, dbname=TEMPLATE)) as conn:
        install(conn)
    yield TEMPLATE
    _drop_database(server_dsn, TEMPLATE)


@pytest.fixture(scope="session")
def make_database(server_dsn: str, template: str) -> Iterator[Callable[..., str]]:
    """Creates a database with the schema, or an empty one, for a session or a module, and returns its DSN."""
    made: list[str] = []

    def make(purpose: str, *, schema: bool = True) -> str:
        made.append(f"taskq_{purpose}_{uuid4().hex[:8]}")
        _create_database(server_dsn, made[-1], *[template] * schema)
        return make_conninfo(server_dsn, dbname=made[-1])

    yield make
    for name in made:
        _drop_database(server_dsn, name)


@pytest.fixture(scope="session")
def shared_database(server_dsn: str, template: str) -> Iterator["SharedDatabase"]:
    """One database for most tests: to create one costs as much CPU as twenty small tests."""
    name = f"taskq_shared_{uuid4().hex[:12]}"
    _create_database(server_dsn, name, template)
    with psycopg.connect(server_dsn, autocommit=True) as admin:  # else the tables of tests go to the schema of the user
        admin.execute(sql.SQL("ALTER DATABASE {} SET search_path = public").format(sql.Identifier(name)))
    with closing(SharedDatabase(make_conninfo(server_dsn, dbname=name))) as database:
        yield database
    _drop_database(server_dsn, name)


@pytest.fixture
def dsn(request: pytest.FixtureRequest, shared_database: "SharedDatabase") -> str:
    """A database with the schema and no topic: the shared one, emptied, unless the test is marked `own_database`."""
    if request.node.get_closest_marker("own_database"):
        return str(request.getfixturevalue("own_dsn"))
    shared_database.empty()
    return shared_database.dsn


@pytest.fixture
def own_dsn(server_dsn: str, template: str) -> Iterator[str]:
    """A database for one test alone, to change its schema, or because tables must be new and without statistics."""
    name = f"taskq_own_{uuid4().hex[:12]}"
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
def conn(dsn: str, shared_database: "SharedDatabase") -> Iterator[psycopg.Connection]:
    """A connection in autocommit: every verb is its own transaction."""
    if dsn == shared_database.dsn:
        yield shared_database.connection()
    else:
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


class SharedDatabase:
    """A database that is emptied for each test, and one session on it that all tests use.

    A new session loads the catalog and compiles each function that it calls. That takes longer than most tests.
    """

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._conn = connect(dsn, autocommit=True)
        self._used = [self._conn]

    def empty(self) -> None:
        """Ends all other sessions, resets this one, deletes all rows, and drops objects that tests left in `public`."""
        self._reset()
        deadline = time.monotonic() + 10  # programs that a test left running may connect again
        while self._conn.execute(_END_OTHERS).rowcount and time.monotonic() < deadline:
            time.sleep(0.002)  # until the server has ended them
        if self._conn.execute(_CREATED_BY_TESTS).rowcount:
            self._conn.execute(
                "DROP SCHEMA public CASCADE; CREATE SCHEMA public; GRANT USAGE ON SCHEMA public TO public"
            )
        empty_queue(self._conn)
        for names in self._conn.execute(_BLOATED, (SCHEMAS,)).fetchall():  # the queue estimates figures of large tables
            self._conn.execute(sql.SQL("VACUUM {}").format(sql.Identifier(*names)))

    def connection(self) -> psycopg.Connection:
        """The session as a new object of psycopg: handlers, factories and adapters of other tests are gone."""
        self._conn = psycopg.Connection(self._conn.pgconn)
        self._conn.autocommit = True
        self._conn.prepare_threshold = None
        self._used.append(self._conn)
        return self._conn

    def close(self) -> None:
        """Ends the session."""
        for conn in self._used:
            conn.close()

    def _reset(self) -> None:
        """Resets the settings of the session. Replaces one that a test closed, killed or left in a transaction."""
        try:
            if self._conn.pgconn.transaction_status == TransactionStatus.IDLE:
                self._conn.execute(_DISCARD)
                return
        except psycopg.OperationalError:
            pass
        self._conn.close()
        self._conn = connect(self.dsn, autocommit=True)
        self._used.append(self._conn)


# DISCARD ALL, but for the plans: to make them again costs as much CPU as all else that a small test does.
_DISCARD = (
    "CLOSE ALL; RESET SESSION AUTHORIZATION; RESET ALL; DEALLOCATE ALL; UNLISTEN *;"
    " SELECT pg_advisory_unlock_all(); DISCARD TEMP; DISCARD SEQUENCES"
)
_END_OTHERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
)
_CREATED_BY_TESTS = (
    "SELECT FROM pg_class WHERE relnamespace = 'public'::regnamespace"
    " UNION ALL SELECT FROM pg_proc WHERE pronamespace = 'public'::regnamespace LIMIT 1"
)
_BLOATED = (
    "SELECT relnamespace::regnamespace::text, relname FROM pg_class"
    " WHERE relnamespace = ANY (%s::regnamespace[]) AND relkind = 'r' AND pg_relation_size(oid) > 1000000"
    " AND NOT coalesce('fillfactor=100' = ANY (reloptions), false)"  # made with the schema, to be locked only
)


def _hash_password_cheaply(dsn: str) -> None:
    """Store the password with one round of hashing: with the usual 4,096, most of a login's CPU time goes there."""
    with psycopg.connect(dsn, autocommit=True) as admin:
        if admin.info.server_version >= 160_000:
            admin.execute("SET scram_iterations = 1")
            admin.execute(sql.SQL("ALTER ROLE CURRENT_USER PASSWORD {}").format(admin.info.password))


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
