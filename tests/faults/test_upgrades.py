"""Upgrades of a schema in use by the next release, which is made of the files of this one."""

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from airflow_provider_taskq.queue import (
    Cursor,
    NewTask,
    Owner,
    PartitionLease,
    Result,
    State,
    TaskQueue,
    connect,
    install,
    verify,
)
from airflow_provider_taskq.queue.errors import NewerSchema
from airflow_provider_taskq.queue.reports import TaskFilter
from airflow_provider_taskq.queue.waits import ReadyWait
from tests.faults import signatures
from tests.faults.releases import install_next_release, run_next_release
from tests.internals import (
    ADDING_MIGRATION,
    INDEXING_MIGRATION,
    REWRITING_MIGRATION,
    build_index_ahead,
    scans_and_files,
)
from tests.queue.conftest import hurry, until
from tests.queue.test_access import verbs

pytestmark = pytest.mark.promise("The package of a release works with the schema of the next one")

LEASE = timedelta(minutes=5)
LEASED = PartitionLease("group", "work", 0, 3)
WAITING = """SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database WHERE d.datname = current_database()
    AND l.mode = 'AccessExclusiveLock' AND NOT l.granted"""
BUILDING = """SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE a.datname = current_database()
    AND a.query LIKE 'CREATE INDEX CONCURRENTLY%' AND l.locktype = 'virtualxid' AND NOT l.granted"""

PREPARED = "SELECT FROM pg_prepared_statements WHERE statement ~ 'taskq'"
MORE_COLUMNS = """ALTER FUNCTION taskq.poll RENAME TO poll_of_last_release;
CREATE FUNCTION taskq.poll(
    p_topic text, p_owner text, p_fence bigint, p_size int, p_order text, p_condition text,
    OUT sequence bigint, OUT identifier text, OUT payload json, OUT reference text, OUT attempt int,
    OUT redelivered boolean, OUT of_next_release int
) RETURNS SETOF record LANGUAGE sql AS 'SELECT *, 0 FROM taskq.poll_of_last_release($1, $2, $3, $4, $5, $6)'"""


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


def figures(dsn: str) -> dict[str, tuple[int, int]]:
    """The scans and the file of each table of tasks, as another session sees them."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        return scans_and_files(conn)


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


@pytest.mark.promise("An upgrade scans and rewrites no table of tasks")
@pytest.mark.parametrize(
    ("migration", "scanned", "rewritten"),
    [
        (ADDING_MIGRATION, set(), set()),
        (INDEXING_MIGRATION, {"live"}, set()),
        (REWRITING_MIGRATION, {"ended"}, {"ended"}),
    ],
    ids=["by the rule", "an index against it", "a rewrite against it"],
)
def test_an_upgrade_by_the_rule_scans_and_rewrites_no_table_of_tasks(
    migration: str, scanned: set[str], rewritten: set[str], queue: TaskQueue, dsn: str
) -> None:
    queue.conn.execute("SELECT pg_stat_reset()")
    before = figures(dsn)
    install_next_release(dsn, migration)
    after = figures(dsn)
    assert {table for table in before if after[table][0] != before[table][0]} == scanned
    assert {table for table in before if after[table][1] != before[table][1]} == rewritten


@pytest.mark.promise("An upgrade scans and rewrites no table of tasks")
def test_an_index_that_was_built_before_the_upgrade_holds_up_no_call_and_needs_no_scan(
    queue: TaskQueue, dsn: str
) -> None:
    queue.create_topic("own", own_tables=True)
    queue.push("own", ["customer-1"])
    with ThreadPoolExecutor() as threads, connect(dsn) as longer, connect(dsn, autocommit=True) as other:
        TaskQueue(longer).push("work", [NewTask("customer-1")])
        build = threads.submit(build_index, dsn)
        until(lambda: other.execute(BUILDING).rowcount > 0)
        busy = hurry(TaskQueue(other))
        for topic in ("work", "own"):
            busy.push(topic, [NewTask("customer-2")])
            owner = busy.register(topic)
            busy.complete(owner, dict.fromkeys(busy.poll(topic, owner, 10), Result.SUCCESS))
        assert not build.done()
        longer.commit()
        build.result()
    queue.conn.execute("SELECT pg_stat_reset()")
    before = figures(dsn)
    install_next_release(dsn, INDEXING_MIGRATION)
    assert figures(dsn) == before


def build_index(dsn: str) -> None:
    """Builds the index of the migration before the upgrade."""
    with connect(dsn, autocommit=True) as conn:
        build_index_ahead(conn)


@pytest.mark.promise("An upgrade scans and rewrites no table of tasks")
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
    for check in (verify, install):
        with pytest.raises(NewerSchema, match="upgrade the package"):
            check(queue.conn)


def test_an_upgrade_names_the_transaction_that_it_has_waited_for(queue: TaskQueue, dsn: str) -> None:
    with connect(dsn) as longer:
        TaskQueue(longer).push("work", [NewTask("customer-1")])
        refused = run_next_release(make_conninfo(dsn, options="-c lock_timeout=700ms"), "install")
        assert refused.returncode == 1
        assert f"longer than 0.7 s; session {longer.info.backend_pid} is one of them" in refused.stderr
    verify(queue.conn)


@pytest.fixture
def used(dsn: str) -> Iterator[TaskQueue]:
    """A queue in use, with the objects that `verbs` and `further_verbs` name. The topic `work` has its own tables.

    Its session prepares each statement that psycopg may prepare.
    """
    with closing(connect(dsn, autocommit=True, prepare_threshold=0)) as conn:
        queue = TaskQueue(conn)
        owner = queue.register("me", LEASE)
        queue.create_topic("work", own_tables=True, keep_succeeded="1d")
        queue.push("work", [NewTask(identifier, {"total": 12}) for identifier in ("a", "b", "c", "d")])
        held, succeeding, failing = queue.poll("work", owner, 3)
        queue.complete(owner, {succeeding: Result.SUCCESS, failing: Result.FAILURE})
        assert (owner.fence, held.sequence, queue.page("work")[0].state) == (1, 1, State.ACTIVE)
        queue.push("work", [NewTask("next", depends_on=[("work", "d")]), NewTask("waiting", suspended=True)])
        queue.install_ticks("work", "hourly", "hash", [(datetime.now(UTC) + LEASE, None)])
        queue.lock("taken", "me", LEASE)
        queue.begin_drain("drain", "work", owner)
        queue.deactivate_worker("worker")
        assert queue.acquire_partition("group", "work", owner) == LEASED
        with queue.conn.transaction():
            further_verbs(queue)["record_action"]()
        yield queue


def further_verbs(queue: TaskQueue) -> dict[str, Callable[[], object]]:
    """Calls of the verbs that `verbs` leaves out, or that it calls for another task than one that waits."""

    def record_action() -> None:
        queue.set_actor("visitor")
        queue.record_action("purge", "work", "all", 1)

    now = datetime.now(UTC)
    owner = Owner("me", 1, LEASE, now, resumed=False)
    return {
        "acquire_partition": lambda: queue.acquire_partition("another", "work", owner),
        "activate_worker": lambda: queue.activate_worker("worker"),
        "advance_partition": lambda: queue.advance_partition(LEASED, Cursor(0), Cursor(1)),
        "begin_drain": lambda: queue.begin_drain("another", "work"),
        "browse_held": lambda: queue.browse_held("me"),
        "browse_holders": lambda: queue.browse_holders("work"),
        "browse_locks": queue.browse_locks,
        "browse_owner": lambda: queue.browse_owner("me"),
        "browse_owners": queue.browse_owners,
        "browse_tasks": lambda: queue.browse_tasks("work", [1, 2, 3]),
        "browse_ticks": lambda: queue.browse_ticks("work"),
        "browse_topic": lambda: queue.browse_topic("work"),
        "browse_topics": queue.browse_topics,
        "count_tasks": lambda: queue.count_tasks("work"),
        "deactivate_worker": lambda: queue.deactivate_worker("another"),
        "dependencies": lambda: queue.dependencies("work", 5),
        "drain_counts": lambda: queue.drain_counts("work", "me", now - LEASE),
        "draw_fence": lambda: queue.draw_fence(owner),
        "drain_report": lambda: queue.drain_report("drain"),
        "end_drain": lambda: queue.end_drain("drain", {}, owner),
        "find_claimed": lambda: queue.find_claimed("work", "me"),
        "find_tasks": lambda: queue.find_tasks("work", TaskFilter(state=State.FAILED)),
        "forget_group": lambda: queue.forget_group("unknown", "work"),
        "forget_worker": lambda: queue.forget_worker("worker"),
        "grant_access": lambda: queue.grant_access("pg_monitor", "reader"),
        "grants": queue.grants,
        "is_worker_active": lambda: queue.is_worker_active("worker"),
        "json_encoder": lambda: queue.json_encoder()({"total": 12}),
        "last_tick": lambda: queue.last_tick("work", "hourly", "hash"),
        "lock_tasks": lambda: queue.lock_tasks("work", [1], [State.ACTIVE]),
        "log_blockers": lambda: queue.log_blockers("work"),
        "newest_sequences": lambda: queue.newest_sequences("work", ["a"]),
        "now": queue.now,
        "oldest_due": queue.oldest_due,
        "offer_many": lambda: queue.offer_many("work", ["a"]),
        "owner": lambda: queue.owner("me"),
        "partition_states": queue.partition_states,
        "purge_past_ttl": lambda: queue.purge_past_ttl("work"),
        "read_partition": lambda: queue.read_partition(LEASED),
        "release_partition": lambda: queue.release_partition(LEASED),
        "revoke_access": lambda: queue.revoke_access("pg_monitor"),
        "search_tasks": lambda: queue.search_tasks("a"),
        "set_actor": lambda: queue.set_actor("visitor"),
        "skipped_events": lambda: queue.skipped_events("group", "work"),
        "statistics": queue.statistics,
        "take_over": lambda: queue.take_over("me", 1),
        "task_texts": lambda: queue.task_texts("work", 1, 9),
        "throughput": lambda: queue.throughput(LEASE, 2),
        "topic_status": lambda: queue.topic_status("work"),
        "topic_statuses": lambda: queue.topic_statuses([("work", "NONE")]),
        "watch": lambda: [each.number for found in queue.watch([ReadyWait("work")]).values() for each in found],
        "workers": queue.workers,
        # Instead of those of `verbs`:
        "cancel": lambda: queue.cancel("work", [4]),
        "health": lambda: sorted({finding.subject for finding in queue.health()}),  # their texts depend on the load
        "change_waiting": lambda: queue.change_waiting("work", [4], priority=5, attempts=0, due=now),
        "record_action": record_action,
    }


def answers(queue: TaskQueue) -> dict[str, str]:
    """The answer of each verb, without its numbers and moments. No call changes anything, and none is prepared."""
    found = {}
    for name, call in {**verbs(queue), **further_verbs(queue)}.items():
        with queue.conn.transaction(force_rollback=True):
            answer = repr(call()).replace(", of_next_release=0", "")  # a row has all columns
            found[name] = re.sub(r"datetime\.timedelta\([^)]*\)|\d[\d.e-]*", "#", answer)
            assert queue.conn.execute(PREPARED, prepare=False).rowcount == 0, name
    return found


class WideCursor(psycopg.Cursor[Any]):
    """Adds a column to the end of each table of which the package reads all columns."""

    def execute(self, query: Any, *args: Any, **options: Any) -> Any:
        """Executes a statement."""
        wide = rb"\1*, 0 AS of_next_release FROM taskq."
        narrow = rb"(SELECT |, t\.)\* FROM taskq\.(?!topics)"  # returns single values
        return super().execute(
            re.sub(narrow, wide, query if isinstance(query, bytes) else query.encode()), *args, **options
        )


def test_every_verb_of_the_last_release_answers_as_before_on_the_schema_of_the_next(used: TaskQueue, dsn: str) -> None:
    before = answers(used)
    assert {*before, "json_encoder"} == {name for name in dir(TaskQueue) if not name.startswith("_")}
    install_next_release(dsn)
    assert answers(used) == before
    owner = used.register("other")
    used.create_topic("apart", own_tables=True)
    pushed = used.push("apart", ["a"])
    assert used.poll("apart", owner) == pushed
    assert used.drop_topic("apart")
    assert set(answers(used)) == set(before)


@pytest.mark.parametrize("threshold", [None, 0], ids=["prepares nothing", "prepares at once"])
def test_a_session_continues_when_a_result_gets_a_further_column(
    queue: TaskQueue, dsn: str, threshold: int | None
) -> None:
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=threshold) as conn:
        caller = TaskQueue(conn)
        owner = caller.register("caller")
        [before] = caller.poll("work", owner)
        queue.conn.execute(MORE_COLUMNS)
        [after] = caller.poll("work", owner)
        assert after.sequence > before.sequence


def test_every_verb_reads_a_result_that_has_a_further_column(used: TaskQueue) -> None:
    before = answers(used)
    used.conn.cursor_factory = WideCursor
    assert answers(used) == before


def test_every_function_of_the_last_release_runs_on_the_schema_of_the_next(empty_dsn: str, repository: Path) -> None:
    calls = (repository / "tests/docs/every_function.sql").read_text(encoding="utf-8")
    with connect(empty_dsn, autocommit=True) as conn:
        install(conn)
        before = signatures.of_database(conn)
        install_next_release(empty_dsn)
        after = signatures.of_database(conn)
        assert [each for each in before if not any(new.serves(each) for new in after)] == []
        for call in calls.split(";\n"):
            conn.execute(call.encode())
        conn.execute("DROP OWNED BY producer_of_orders; DROP ROLE producer_of_orders")


def test_the_functions_serve_every_call_of_the_last_release_by_their_signatures(dsn: str) -> None:
    with connect(dsn, autocommit=True) as conn:
        present = signatures.of_database(conn)
        if os.environ.get("TASKQ_SIGNATURES") == "write":
            signatures.write(present)
        assert [each for each in signatures.of_last_release() if not any(new.serves(each) for new in present)] == []


def test_the_package_of_the_next_release_names_the_schema_of_the_last_as_older(queue: TaskQueue, dsn: str) -> None:
    refused = run_next_release(dsn, "verify")
    assert refused.returncode == 1
    assert "older: it lacks" in refused.stdout
    assert "install" in refused.stdout
    install_next_release(dsn)
    assert run_next_release(dsn, "verify").returncode == 0
    assert queue.ready("work", 200) == 100


@pytest.mark.promise("The schema is installed once, and removed without a trace")
def test_an_uninstallation_leaves_no_object_in_any_catalog(empty_dsn: str) -> None:
    with closing(connect(empty_dsn, autocommit=True)) as conn:
        before = catalogs(conn)
        install(conn)
        queue = TaskQueue(conn)
        queue.create_topic("work", own_tables=True)
        queue.push("work", [NewTask("customer-1")])
        install_next_release(empty_dsn)
        assert len(catalogs(conn)) > len(before) + 400
        assert run_next_release(empty_dsn, "uninstall --yes").returncode == 0
        assert catalogs(conn) == before
