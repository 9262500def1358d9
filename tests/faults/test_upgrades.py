"""Upgrades of a schema in use by the next release, which is made of the files of this one."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from airflow_provider_taskq.queue import NewTask, Result, TaskQueue, connect, install, verify
from airflow_provider_taskq.queue.errors import NewerSchema
from tests.faults.releases import MIGRATION, install_next_release, run_next_release
from tests.queue.conftest import until

TABLES = ("task", "live", "ended")
WAITING = """SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database WHERE d.datname = current_database()
    AND l.mode = 'AccessExclusiveLock' AND NOT l.granted"""
FILES = "SELECT pg_relation_filenode(('taskq_internal.' || %s || '_default')::regclass)"
SCANS = "SELECT seq_scan FROM pg_stat_user_tables WHERE schemaname = 'taskq_internal' AND relname = %s || '_default'"


@pytest.fixture
def queue(dsn: str) -> Iterator[TaskQueue]:
    """A queue with 200 tasks, of which half have ended."""
    with closing(connect(dsn, autocommit=True)) as conn:
        queue = TaskQueue(conn)
        queue.create_topic("work")
        queue.push("work", [NewTask(f"customer-{number}") for number in range(200)])
        owner = queue.register("worker")
        queue.complete(owner, dict.fromkeys(queue.poll("work", owner, 100), Result.SUCCESS))
        yield queue


def figures(conn: psycopg.Connection, query: str) -> dict[str, object]:
    """A figure of each table that has a row for each task."""
    rows = {table: conn.execute(query.encode(), (table,)).fetchone() for table in TABLES}
    return {table: row[0] for table, row in rows.items() if row is not None}


def scans(dsn: str) -> dict[str, object]:
    """The scans of each table so far, as another session sees them."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        return figures(conn, SCANS)


def catalogs(conn: psycopg.Connection) -> set[tuple[object, ...]]:
    """Every object of the database, and every row of a catalog of the whole server."""
    local = ["pg_namespace", "pg_class", "pg_proc", "pg_type", "pg_operator", "pg_opclass", "pg_cast", "pg_extension"]
    local += ["pg_default_acl", "pg_event_trigger", "pg_largeobject_metadata", "pg_publication", "pg_trigger"]
    names = [*local, "pg_authid", "pg_database", "pg_tablespace", "pg_seclabel", "pg_description", "pg_constraint"]
    kinds = {name: "objoid" if name in {"pg_seclabel", "pg_description"} else "oid" for name in names}
    return {
        (name, row[0])
        for name, key in kinds.items()
        for row in conn.execute(f"SELECT {key} FROM {name} WHERE {key} >= 16384".encode())
    }


@pytest.mark.parametrize(
    ("migration", "scanned", "rewritten"),
    [
        (MIGRATION, set(), set()),
        ("CREATE INDEX ON taskq_internal.live (topic_id, attempt)", {"live"}, set()),
        ("ALTER TABLE taskq_internal.ended ADD COLUMN r float DEFAULT random()", {"ended"}, {"ended"}),
    ],
    ids=["by the rule", "an index against it", "a rewrite against it"],
)
def test_an_upgrade_by_the_rule_scans_and_rewrites_no_table_of_tasks(
    migration: str, scanned: set[str], rewritten: set[str], queue: TaskQueue, dsn: str
) -> None:
    queue.conn.execute("SELECT pg_stat_reset()")
    before, files = scans(dsn), figures(queue.conn, FILES)
    install_next_release(dsn, migration)
    after, later = scans(dsn), figures(queue.conn, FILES)
    assert {table for table in TABLES if after[table] != before[table]} == scanned
    assert {table for table in TABLES if later[table] != files[table]} == rewritten


def test_an_upgrade_that_waits_for_a_transaction_lets_other_calls_pass(queue: TaskQueue, dsn: str) -> None:
    patient = make_conninfo(dsn, options="-c statement_timeout=60s")
    with ThreadPoolExecutor() as threads, connect(dsn) as longer, connect(patient, autocommit=True) as other:
        TaskQueue(longer).push("work", [NewTask("customer-1")])
        upgrade = threads.submit(install_next_release, dsn)
        for _ in range(2):
            until(lambda: other.execute(WAITING).rowcount > 0)
            TaskQueue(other).push("work", [NewTask("customer-1")])
        assert not upgrade.done()
        longer.commit()
        upgrade.result()
    with pytest.raises(NewerSchema):
        verify(queue.conn)


def test_an_upgrade_names_the_transaction_that_it_has_waited_for(queue: TaskQueue, dsn: str) -> None:
    with connect(dsn) as longer:
        TaskQueue(longer).push("work", [NewTask("customer-1")])
        refused = run_next_release(make_conninfo(dsn, options="-c lock_timeout=700ms"), "install")
        assert refused.returncode == 1
        assert f"longer than 0.7 s; session {longer.info.backend_pid} is one of them" in refused.stderr
    verify(queue.conn)


def test_the_package_of_the_last_release_works_on_with_the_schema_of_the_next(queue: TaskQueue, dsn: str) -> None:
    owner = queue.owner("worker")
    assert owner is not None
    held = queue.poll("work", owner, 10)
    install_next_release(dsn)
    queue.complete(owner, dict.fromkeys(held, Result.SUCCESS))
    [pushed] = queue.push("work", [NewTask("customer-1")])
    assert pushed.sequence in [task.sequence for task in queue.poll("work", owner, 200)]
    with closing(connect(dsn)) as other:
        with pytest.raises(NewerSchema, match="upgrade the package"):
            verify(other)
        with pytest.raises(NewerSchema, match="upgrade the package"):
            install(other)


def test_the_package_of_the_next_release_names_the_schema_of_the_last_as_older(queue: TaskQueue, dsn: str) -> None:
    refused = run_next_release(dsn, "verify")
    assert refused.returncode == 1
    assert "older: it lacks" in refused.stderr
    assert "install" in refused.stderr
    install_next_release(dsn)
    assert run_next_release(dsn, "verify").returncode == 0
    assert queue.ready("work", 200) == 100


def test_an_uninstallation_leaves_no_object_in_any_catalog(empty_dsn: str) -> None:
    with closing(connect(empty_dsn, autocommit=True)) as conn:
        before = catalogs(conn)
        install(conn)
        queue = TaskQueue(conn)
        queue.create_topic("work")
        queue.push("work", [NewTask("customer-1")])
        queue.own_partition("work")
        install_next_release(empty_dsn)
        assert len(catalogs(conn)) > len(before) + 400
        assert run_next_release(empty_dsn, "uninstall").returncode == 0
        assert catalogs(conn) == before
