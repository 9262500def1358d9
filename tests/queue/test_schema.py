"""The schema: installed once from any number of sessions, verified and removed, in the caller's transaction."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from subprocess import PIPE, Popen
from threading import Event
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from airflow_provider_taskq.queue import (
    Condition,
    Result,
    SchemaMismatch,
    TaskQueue,
    TaskQueueError,
    TopicPolicy,
    connect,
    install,
    uninstall,
    verify,
)
from airflow_provider_taskq.queue.schema import _FOREIGN, _in_turns
from demo.postgres import EmbeddedPostgres
from tests.internals import SCHEMAS, Release, pretend_release
from tests.queue.conftest import identifiers, until

pytestmark = pytest.mark.promise("The schema is installed once, and removed without a trace")

THINGS = """SELECT 'f', p.oid::regprocedure::text, md5(p.prosrc) FROM pg_proc p
    JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = ANY (%(schemas)s)
    UNION ALL SELECT 'c', c.oid::regclass::text, c.relkind::text FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = ANY (%(schemas)s) ORDER BY 1, 2"""


@pytest.fixture
def empty(empty_dsn: str) -> Iterator[psycopg.Connection]:
    """A connection to a database without the schema, in autocommit."""
    with connect(empty_dsn, autocommit=True) as conn:
        yield conn


def things(conn: psycopg.Connection) -> list[tuple[object, ...]]:
    return conn.execute(THINGS, {"schemas": SCHEMAS}).fetchall()


def test_installing_twice_changes_nothing(empty: psycopg.Connection) -> None:
    install(empty)
    TaskQueue(empty).create_topic("work")
    TaskQueue(empty).push("work", ["a"])
    before, ledger = things(empty), empty.execute("SELECT * FROM taskq.migrations").fetchall()
    install(empty)
    assert things(empty) == before
    assert empty.execute("SELECT * FROM taskq.migrations").fetchall() == ledger
    assert TaskQueue(empty).ready("work") == 1


def test_concurrent_installs_from_eight_threads_install_once(empty: psycopg.Connection, empty_dsn: str) -> None:
    def installing(number: int) -> None:
        with connect(empty_dsn, autocommit=number % 2 == 0) as conn:
            install(conn)
            verify(conn)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(installing, range(8)))
    verify(empty)
    assert empty.execute("SELECT count(*) = count(DISTINCT number) FROM taskq.migrations").fetchone() == (True,)


@pytest.mark.parametrize("seed", [0, 1], ids=["one order of a set", "the other"])
def test_installs_from_several_processes_create_the_schemas_in_the_same_order(
    empty: psycopg.Connection, empty_dsn: str, seed: int
) -> None:
    """Else two of them would end in a deadlock. The seed of hashes decides the order of a set of names."""
    command = [sys.executable, "-m", "airflow_provider_taskq.cli", "install"]
    env = {"TASKQ_DSN": empty_dsn, "PYTHONPATH": str(Path.cwd()), "PYTHONHASHSEED": str(seed)}
    with connect(empty_dsn) as first:
        first.execute("CREATE SCHEMA taskq")
        second = Popen(command, env=env, stdout=PIPE, stderr=PIPE, text=True)
        until(lambda: empty.execute("SELECT FROM pg_locks WHERE NOT granted").rowcount)
        first.execute(f"CREATE SCHEMA {SCHEMAS[1]}".encode())
        first.rollback()
    assert second.communicate(timeout=600)[1] == ""
    verify(empty)


def test_an_install_is_part_of_the_callers_transaction(empty: psycopg.Connection, empty_dsn: str) -> None:
    with connect(empty_dsn) as conn:
        install(conn)
        with pytest.raises(SchemaMismatch):
            verify(empty)
        conn.rollback()
        assert things(empty) == []
        assert empty.execute("SELECT to_regnamespace('taskq')").fetchone() == (None,)
        install(conn)
        conn.commit()
    verify(empty)


def test_an_install_leaves_the_session_unchanged(empty_dsn: str) -> None:
    with connect(empty_dsn) as conn:
        conn.execute("DO 'BEGIN END'")  # loads the settings of PL/pgSQL, which are not there before
        before = conn.execute("SELECT name, setting FROM pg_settings ORDER BY name").fetchall()
        install(conn)
        assert conn.execute("SELECT name, setting FROM pg_settings ORDER BY name").fetchall() == before


def test_uninstall_leaves_nothing_and_can_be_repeated(empty: psycopg.Connection) -> None:
    install(empty)
    uninstall(empty)
    assert empty.execute("SELECT to_regnamespace('taskq')").fetchone() == (None,)
    uninstall(empty)
    install(empty)
    verify(empty)


def test_a_missing_schema_is_reported_with_the_command_to_run(empty: psycopg.Connection) -> None:
    for _ in ("no schema", "a schema without our ledger"):
        with pytest.raises(SchemaMismatch, match=r"missing.*taskq install"):
            verify(empty)
        empty.execute("CREATE SCHEMA IF NOT EXISTS taskq")
    install(empty)
    verify(empty)


# What an installation has of another release: the message of `verify`, and whether `install` replaces it.
RELEASES: dict[Release, tuple[str, bool]] = {
    "older": ("older.*install", True),
    "other functions": ("install", True),
    "other views": ("install", True),
    "newer": ("newer.*upgrade", False),
    "newer functions": ("newer.*upgrade", False),
    "other migration": ("0002", False),
}


@pytest.mark.parametrize("release", RELEASES)
def test_another_release_is_reported_and_is_replaced_unless_it_is_a_newer_one(
    empty: psycopg.Connection, release: Release
) -> None:
    message, replaced = RELEASES[release]
    install(empty)
    whole = things(empty)
    pretend_release(empty, release)
    if release == "other functions":
        empty.execute("CREATE FUNCTION taskq.left_over() RETURNS int LANGUAGE sql AS 'SELECT 1'")
        empty.execute("COMMENT ON FUNCTION taskq.left_over IS 'Of another release.'")
    before = things(empty)
    with pytest.raises(SchemaMismatch, match=message):
        verify(empty)
    if not replaced:
        with empty.transaction():
            with pytest.raises(SchemaMismatch, match=message):
                install(empty)
            assert things(empty) == before, "the caller's transaction is still usable"
    elif release != "older":  # whose migrations do not exist
        install(empty)
        verify(empty)
        assert things(empty) == whole


def test_a_session_continues_while_the_functions_are_replaced(empty: psycopg.Connection, empty_dsn: str) -> None:
    install(empty)
    with connect(empty_dsn, autocommit=True) as conn:
        queue = TaskQueue(conn)
        queue.create_topic("work")
        queue.push("work", ["a", "b", "c"])
        owner = queue.register("me")
        queue.poll("work", owner)
        pretend_release(empty)
        install(empty)
        queue.push("work", ["d"])
        assert identifiers(queue.poll("work", owner, 5)) == ["b", "c", "d"]
        assert queue.ready("work") == 0


def test_install_works_whatever_the_search_path(empty: psycopg.Connection) -> None:
    empty.execute("CREATE SCHEMA elsewhere")
    empty.execute("SET search_path = elsewhere")
    install(empty)
    verify(empty)
    queue = TaskQueue(empty)
    queue.create_topic("work")
    queue.push("work", ["a"])
    assert empty.execute("SELECT count(*) FROM pg_class WHERE relnamespace = 'elsewhere'::regnamespace").fetchone() == (
        0,
    )
    owner = queue.register("me")
    assert len(queue.poll("work", owner)) == 1


@pytest.mark.parametrize("produce", [TaskQueue.push, TaskQueue.offer_many])
def test_a_queue_works_after_all_of_its_tables_were_truncated(
    empty: psycopg.Connection, produce: Callable[[TaskQueue, str, list[str]], object]
) -> None:
    """As between two tests, or in a copy of the schema without rows."""
    install(empty)
    tables = "SELECT string_agg(oid::regclass::text, ', ') FROM pg_class WHERE relkind IN ('r', 'p')"
    tables += " AND relnamespace = ANY (%s::regnamespace[])"
    [(names,)] = empty.execute(tables.encode(), (SCHEMAS,)).fetchall()
    empty.execute(f"TRUNCATE {names}".encode())
    install(empty)
    queue = TaskQueue(empty)
    queue.create_topic("work", TopicPolicy(keep_succeeded=timedelta(0)))
    produce(queue, "work", ["a"])
    owner = queue.register("me")
    [task] = queue.poll("work", owner, condition=Condition.SINGULAR_BY_IDENTIFIER)
    queue.complete(owner, {task: Result.SUCCESS})
    assert queue.offer("work", "b").outcome == "CREATED"
    assert queue.offer("work", "b", if_exists="ignore").outcome == "IGNORED"
    assert queue.lock("nightly", "me", timedelta(minutes=1))
    assert sum(queue.maintain().purged for _ in range(2)) == 1
    verify(empty)


@pytest.mark.parametrize("views", [True, False], ids=["an upgrade", "an install without views"])
def test_objects_of_others_that_depend_on_a_view_are_named_and_never_dropped(
    empty: psycopg.Connection, views: bool
) -> None:
    install(empty)
    empty.execute("CREATE VIEW public.failures AS SELECT * FROM taskq.tasks WHERE state = 'FAILED'")
    if views:
        pretend_release(empty)
    before = things(empty)
    with pytest.raises(TaskQueueError, match="view failures depends on view"):
        install(empty, views=views)
    assert things(empty) == before
    assert TaskQueue(empty).topics() == []
    empty.execute("DROP VIEW public.failures")
    install(empty, views=views)
    verify(empty)


ALWAYS = ["every_topic", "granted", "migrations", "privileges", "task_info"]
READABLE = "SELECT relname FROM pg_class WHERE relnamespace = 'taskq'::regnamespace AND relkind = 'v' ORDER BY 1"


def views(conn: psycopg.Connection) -> list[str]:
    """The views of the schema."""
    return [name for (name,) in conn.execute(READABLE.encode())]


def test_a_schema_without_the_readable_views_verifies_and_works(empty: psycopg.Connection) -> None:
    install(empty, views=False)
    verify(empty)
    assert views(empty) == ALWAYS
    queue = TaskQueue(empty)
    queue.create_topic("work")
    [first, second] = queue.push("work", ["a", "b"])
    owner = queue.register("me")
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner), Result.FAILURE))
    failed = queue.explain("work", first.sequence)
    assert failed is not None
    assert failed.reason.endswith(": given up after 1 of 1 attempts")
    assert queue.explain("work", second.sequence) == ("it is ready, and the next in line", True)
    assert queue.task("work", first.sequence) is not None


def test_no_function_needs_the_readable_views(empty: psycopg.Connection) -> None:
    install(empty)
    named = empty.execute(
        r"SELECT proname FROM pg_proc WHERE pronamespace = ANY (%s::regnamespace[])"
        r" AND prosrc ~ '\mtaskq\.(tasks|topic_summaries)\M' ORDER BY 1",
        (SCHEMAS,),
    ).fetchall()
    assert named == []


@pytest.mark.parametrize("role_kind", ["reader", "operator"])
def test_access_is_granted_without_the_readable_views(empty: psycopg.Connection, role_kind: str) -> None:
    install(empty, views=False)
    TaskQueue(empty).create_topic("work")
    TaskQueue(empty).push("work", ["a"])
    role = f"looks_{uuid4().hex[:8]}"
    empty.execute(f"CREATE ROLE {role}".encode())
    try:
        empty.execute("SELECT taskq.grant_access(%s, %s)", (role, role_kind))
        empty.execute(f"SET ROLE {role}".encode())
        assert len(TaskQueue(empty).page("work", after=0)) == 1
        empty.execute("RESET ROLE")
        install(empty, views=True)
        empty.execute(f"SET ROLE {role}".encode())
        assert empty.execute("SELECT identifier FROM taskq.tasks").fetchall() == [("a",)]
    finally:
        empty.execute("RESET ROLE")
        empty.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_an_install_creates_and_removes_the_readable_views(empty: psycopg.Connection) -> None:
    install(empty)
    whole = things(empty)
    install(empty, views=False)
    install(empty)
    assert views(empty) == ALWAYS, "a later installation does not create views that were left out"
    pretend_release(empty)
    install(empty)  # an upgrade
    verify(empty)
    assert views(empty) == ALWAYS
    install(empty, views=True)
    assert things(empty) == whole
    verify(empty)
    install(empty, views=False)
    uninstall(empty)
    install(empty)
    assert things(empty) == whole


@pytest.fixture
def namesake(empty_dsn: str) -> Iterator[psycopg.Connection]:
    """A session whose own schema, the first of its search_path, is the schema taskq: that of a role named taskq."""
    with connect(make_conninfo(empty_dsn, options="-csearch_path=taskq,public"), autocommit=True) as conn:
        yield conn


def test_an_installation_by_a_role_named_taskq_is_the_same_as_by_another(
    namesake: psycopg.Connection, empty: psycopg.Connection
) -> None:
    install(namesake)
    verify(namesake)
    assert namesake.execute(_FOREIGN.encode()).fetchall() == []
    empty.execute("SET search_path = public")
    found = things(empty)
    uninstall(namesake)
    install(empty)
    assert things(empty) == found


def test_objects_of_a_role_named_taskq_are_never_dropped_with_the_schema(namesake: psycopg.Connection) -> None:
    install(namesake)
    namesake.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    pretend_release(namesake)
    install(namesake)  # drops no table
    with pytest.raises(TaskQueueError, match=r"cannot be uninstalled: .*table taskq\.orders\..*SET SCHEMA public"):
        uninstall(namesake)
    namesake.execute("CREATE VIEW report AS SELECT id FROM orders")
    pretend_release(namesake)
    with pytest.raises(TaskQueueError, match=r"cannot be upgraded: .*view taskq\.report\..*ALTER ROLE taskq SET"):
        install(namesake)
    namesake.execute("ALTER VIEW report SET SCHEMA public")
    namesake.execute("ALTER TABLE orders SET SCHEMA public")
    install(namesake)
    uninstall(namesake)
    assert namesake.execute("SELECT to_regclass('public.orders') IS NOT NULL").fetchone() == (True,)


@pytest.fixture
def preparing() -> Iterator[psycopg.Connection]:
    """A session in autocommit of a server that allows prepared transactions, with the schema and a topic `work`."""
    with (
        EmbeddedPostgres(settings={"max_prepared_transactions": "2"}) as server,
        connect(server.dsn, autocommit=True) as conn,
    ):
        install(conn)
        TaskQueue(conn).create_topic("work")
        yield conn


def test_an_upgrade_names_the_prepared_transaction_that_it_has_waited_for(preparing: psycopg.Connection) -> None:
    preparing.execute("BEGIN")
    preparing.execute("SELECT * FROM taskq.tasks")  # the upgrade replaces this view
    preparing.execute("PREPARE TRANSACTION 'import of today'")
    pretend_release(preparing)
    preparing.execute("SET lock_timeout = '700ms'")
    before = things(preparing)
    with pytest.raises(TaskQueueError, match=r"prepared transaction 'import of today' .* COMMIT PREPARED or ROLLBACK"):
        install(preparing)
    assert things(preparing) == before
    preparing.execute("ROLLBACK PREPARED 'import of today'")
    install(preparing)
    verify(preparing)


def test_an_upgrade_that_postgresql_ends_for_a_deadlock_starts_again(empty: psycopg.Connection, empty_dsn: str) -> None:
    empty.execute("CREATE TABLE first (); CREATE TABLE second ()")
    waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'first'::regclass"
    used, changing = Event(), Event()
    attempts: list[int] = []

    def change() -> None:
        attempts.append(1)
        empty.execute("LOCK TABLE first")
        changing.set()
        while len(attempts) == 1 and empty.execute(waits.encode()).fetchone() != (1,):
            empty.execute("SELECT pg_sleep(0.01)")
        empty.execute("LOCK TABLE second")

    def use_in_the_other_order() -> None:
        with connect(empty_dsn) as conn:
            conn.execute("SET deadlock_timeout = '100s'")  # so that PostgreSQL ends the other session
            conn.execute("LOCK TABLE second")
            used.set()
            assert changing.wait(60)
            conn.execute("LOCK TABLE first")

    empty.execute("SET deadlock_timeout = '10ms'")
    with ThreadPoolExecutor(1) as pool:
        using = pool.submit(use_in_the_other_order)
        assert used.wait(60)
        with empty.transaction():
            _in_turns(empty, change)
        using.result(60)
    assert len(attempts) > 1
