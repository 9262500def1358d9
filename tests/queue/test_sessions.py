"""Verbs leave nothing in the session, take one round trip, and read a bounded number of pages."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus

from airflow_provider_taskq.queue import (
    Decision,
    Insertion,
    InvalidTask,
    Junction,
    NewTask,
    Owner,
    Result,
    RetryPolicy,
    Revival,
    State,
    Task,
    TaskQueue,
    TaskQueueError,
    TopicPolicy,
    connect,
    install,
)
from airflow_provider_taskq.queue.claims import held_sequences
from airflow_provider_taskq.queue.handler_statements import handler_statements
from tests.internals import SCHEMAS, stored_rows
from tests.queue.conftest import flush_statistics, numbered
from tests.queue.test_access import verbs

pytestmark = pytest.mark.promise("A call is one round trip and leaves nothing in the session")

HOUR = timedelta(hours=1)
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
Verb = Callable[[TaskQueue, Owner, Any], object]

# A stream takes several calls, record_action needs an actor, and some verbs a task that is not held.
NAMES = [
    name
    for name in verbs(TaskQueue.__new__(TaskQueue))
    if name not in ("push_stream", "record_action", "change_waiting", "cancel")
]
VERBS: dict[str, Verb] = {
    "push many": lambda queue, _owner, _task: queue.push(
        "work", ["x", NewTask("y", {"z": 1}, priority=1)], Insertion.REPLACE
    ),
    "poll many": lambda queue, owner, _task: queue.poll("work", owner, 2),
    "snooze": lambda queue, owner, task: queue.complete(
        owner, {task: Decision(Result.SUSPENSION, delay=timedelta(seconds=1))}
    ),
    "offer that updates": lambda queue, _owner, _task: queue.offer("work", "b", {"z": 2}),
    "offer many": lambda queue, _owner, _task: queue.offer_many("work", ["b", "new", NewTask("b", 1)]),
    "drop a waiting task": lambda queue, _owner, _task: queue.drop("work", "b"),
    "count recent": lambda queue, _owner, _task: queue.count(recent=True),
    **{name: lambda queue, owner, _, name=name: verbs(queue, "work", owner)[name]() for name in NAMES},  # type: ignore[misc]
    "drop its topic": lambda queue, _owner, _task: queue.drop_topic("work"),
}
OPERATORS_VERBS: dict[str, Verb] = {
    "lock": lambda queue, _owner, _task: queue.lock("job", "a", HOUR, HOUR),
    "unlock": lambda queue, _owner, _task: queue.unlock("other job", "a"),
    "results": lambda queue, _owner, _task: queue.results(datetime.now(UTC) - HOUR),
    "resolve": lambda queue, _owner, _task: queue.resolve(datetime.now(UTC) - HOUR),
    "resolve a preceding": lambda queue, _owner, _task: queue.resolve(datetime.now(UTC) + HOUR, preceding=True),
    "junction": lambda queue, _owner, _task: queue.junction("work", [["s"], ["t", "missing"]]),
    "eternal junction": lambda queue, _owner, _task: queue.junction("work", [["a", "t"]], Junction.ETERNAL),
    "reassign": lambda queue, _owner, task: queue.reassign("work", Result.FILTER, sequences=[task.sequence]),
    "reassign by state": lambda queue, _owner, _task: queue.reassign("work", Result.FAILURE, state=State.FILTERED),
    "replace": lambda queue, _owner, _task: queue.revive("work", State.SUCCEEDED, Revival.REPLACE, size=1),
    "supersede": lambda queue, _owner, _task: queue.revive("work", State.SUCCEEDED, Revival.SUPERSEDE, size=1),
    "append": lambda queue, _owner, _task: queue.revive("work", State.SUCCEEDED, Revival.APPEND, size=1),
    "reset": lambda queue, _owner, task: queue.revive("work", sequences=[task.sequence]),
    "purge": lambda queue, _owner, _task: queue.purge("work"),
    "purge_owners": lambda queue, _owner, _task: queue.purge_owners(timedelta(0)),
    "purge_all": lambda queue, _owner, _task: queue.purge_all("work"),
}
LEFT = """SELECT (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_cursors WHERE name <> ''),
    (SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'),
    (SELECT count(*) FROM pg_class WHERE relpersistence = 't' AND relkind = 'r'),
    (SELECT count(*) FROM pg_listening_channels())"""


def hold_tasks_of(queue: TaskQueue, owner: Owner) -> Task:
    """A held task, and two READY ones."""
    queue.push("work", ["a", "b", "c"])
    return queue.poll("work", owner)[0]


def end_tasks_of(queue: TaskQueue, owner: Owner) -> Task:
    """One of several ended tasks, with suspended and READY ones, an owner whose lease is gone, and a lock."""
    tasks = queue.push("work", [*"abcde"])
    queue.push("work", [NewTask("s", suspended=True), NewTask("t", suspended=True)])
    queue.poll("work", owner, 4)
    queue.complete(owner, {**dict.fromkeys(tasks[:3], Result.SUCCESS), tasks[3]: Result.FILTER})
    queue.release(queue.register("gone"))
    queue.lock("other job", "a", HOUR)
    return tasks[0]


Arrange = Callable[[TaskQueue, Owner], Task]
TABLES: dict[Arrange, dict[str, Verb]] = {hold_tasks_of: VERBS, end_tasks_of: OPERATORS_VERBS}
CASES = [
    pytest.param(arrange, name, verb, id=f"{arrange.__name__}-{name}")
    for arrange, verbs in TABLES.items()
    for name, verb in verbs.items()
]


@pytest.mark.promise("Every call runs in your transaction and never commits")
@pytest.mark.parametrize(("arrange", "name", "verb"), CASES)
def test_a_verb_takes_one_round_trip_and_is_undone_by_the_callers_rollback(
    queue: TaskQueue, owner: Owner, session: TaskQueue, arrange: Arrange, name: str, verb: Verb, tmp_path: Path
) -> None:
    task = arrange(queue, owner)
    before = stored_rows(queue.conn)
    session.conn.execute("SELECT")
    log = tmp_path / "protocol"
    with log.open("w") as file:
        session.conn.pgconn.trace(file.fileno())
        answer = verb(session, owner, task)
        session.conn.pgconn.untrace()
    assert log.read_text().count("ReadyForQuery") == 1
    assert arrange is hold_tasks_of or answer, f"{name} does nothing here"
    session.conn.rollback()
    assert stored_rows(queue.conn) == before


@pytest.mark.parametrize(("arrange", "verbs"), TABLES.items(), ids=["verbs", "operators' verbs"])
def test_verbs_leave_nothing_in_the_session(
    queue: TaskQueue, owner: Owner, dsn: str, arrange: Arrange, verbs: dict[str, Verb]
) -> None:
    """A transaction pooler may give every transaction another session: here each verb has its own."""
    task = arrange(queue, owner)
    settings = "SELECT name, setting FROM pg_settings ORDER BY name"
    for name, verb in verbs.items():
        with connect(dsn, autocommit=True) as conn:
            conn.execute("DO 'BEGIN END'")
            before = conn.execute(settings.encode()).fetchall()
            if name not in ("complete", "exchange"):  # it was snoozed
                verb(TaskQueue(conn), owner, task)
            assert conn.execute(LEFT.encode()).fetchone() == (0, 0, 0, 0, 0), name
            assert conn.execute(settings.encode()).fetchall() == before, name


OTHER_SETTINGS = {
    "IntervalStyle": "iso_8601",
    "DateStyle": "German",
    "standard_conforming_strings": "off",
    "client_encoding": "SQL_ASCII",
    "array_nulls": "off",
}


@pytest.mark.promise("Settings of a role or database change no answer, or are named")
@pytest.mark.usefixtures("queue")
@pytest.mark.parametrize(("name", "value"), OTHER_SETTINGS.items())
def test_a_setting_of_a_role_or_database_changes_no_answer_or_is_named(dsn: str, name: str, value: str) -> None:
    other = make_conninfo(dsn, options=f"-c {name}={value}")
    with connect(other) as conn:
        conn.rollback()
        session = TaskQueue(conn)
        owner = session.register("other", HOUR)
        assert owner.lease == HOUR
        session.push("work", [NewTask("back\\slash", {"é": "\\"}), NewTask("null", reference="NULL")])
        [first, second] = session.poll("work", owner, 2)
        assert (first.payload, second.reference) == ({"é": "\\"}, "NULL")
        session.complete(owner, dict.fromkeys([first, second], Result.SUCCESS))
        assert [each.output for each in session.page("work")] == [None, None]
        conn.commit()
    with psycopg.connect(other) as conn:
        if name == "array_nulls":  # the server does not report it, and no call depends on it
            TaskQueue(conn).push("work", [NewTask("c", {}), NewTask("d")])
        else:
            with pytest.raises(TaskQueueError, match=rf"has {name} = {value}.*run SET {name} TO"):
                TaskQueue(conn).topics()
            assert conn.info.transaction_status == TransactionStatus.IDLE


@pytest.mark.promise("Settings of a role or database change no answer, or are named")
def test_a_connection_whose_cursors_have_other_placeholders_works(own_queue: TaskQueue) -> None:
    own_queue.conn.cursor_factory = psycopg.RawCursor
    install(own_queue.conn)
    owner = own_queue.register("me")
    own_queue.push_stream("work", ["a", NewTask("b", {"n": 1})])
    assert held_sequences(own_queue.conn, owner) == []
    tasks = own_queue.poll("work", owner, 2)
    with own_queue.conn.transaction(), handler_statements(own_queue.conn):
        own_queue.conn.execute("SELECT $1::int", (1,))
    own_queue.complete(owner, dict.fromkeys(tasks, Result.SUCCESS))


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_in_another_encoding_names_what_it_lacks(own_dsn: str, server_dsn: str, encoding: str) -> None:
    name = f"taskq_{encoding}_{uuid4().hex[:8]}".lower()
    with connect(server_dsn, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'".encode())
        with connect(make_conninfo(own_dsn, dbname=name), autocommit=True) as conn:
            if encoding == "SQL_ASCII":
                with pytest.raises(TaskQueueError, match=r"SQL_ASCII.*create a database with ENCODING 'UTF8'"):
                    install(conn)
            else:
                install(conn)
                queue = TaskQueue(conn)
                queue.create_topic("work")
                queue.push("work", [NewTask("é", {"é": "é"})])
                assert queue.page("work")[0].payload == {"é": "é"}
                for task in (NewTask("€"), NewTask("a", {"price": "€"})):
                    with pytest.raises(InvalidTask, match=r"holds '€', which the encoding of the connection .* lacks"):
                        queue.push("work", [task])
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


NO_REPLICA_IDENTITY = """SELECT c.oid::regclass::text FROM pg_class c
    WHERE c.relnamespace = ANY (%s::regnamespace[]) AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
      AND c.relreplident NOT IN ('f', 'i')
      AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)"""


@pytest.mark.promise("A publication of all tables hinders no call")
def test_verbs_run_in_a_database_whose_tables_are_all_published(own_queue: TaskQueue) -> None:
    own_queue.create_topic("own", own_tables=True)
    own_queue.conn.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    for arrange, table in TABLES.items():
        owner = own_queue.register(arrange.__name__)
        task = arrange(own_queue, owner)
        for verb in table.values():
            with own_queue.conn.transaction(force_rollback=True):
                verb(own_queue, owner, task)
        own_queue.purge_all("work")
    assert own_queue.drop_topic("own")
    assert own_queue.conn.execute(NO_REPLICA_IDENTITY, (SCHEMAS,)).fetchall() == []


def pages_of(queue: TaskQueue, work: Callable[[], object]) -> int:
    """The number of pages of tables and indexes of the schema that a call touches."""
    if queue.conn.info.server_version < 150_000:
        pytest.skip("PostgreSQL 14 counts the pages of a call up to a second later, with those of autovacuum")
    flush_statistics(queue.conn)
    before = _touched(queue)
    work()
    flush_statistics(queue.conn)
    return _touched(queue) - before


def _touched(queue: TaskQueue) -> int:
    row = queue.conn.execute(
        "SELECT pg_stat_clear_snapshot(), (SELECT sum(heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit)"
        " FROM pg_statio_user_tables WHERE schemaname = ANY (%s))",
        (SCHEMAS,),
    ).fetchone()
    assert row is not None
    return int(row[1])


def make_next_poll_advance_fronts(conn: psycopg.Connection) -> None:
    """Seed the session's random numbers: the next one is below 0.1, and a poll of ten tasks draws one."""
    for seed in range(1000):
        conn.execute("SELECT setseed(%s)", [seed / 1000])
        row = conn.execute("SELECT random()").fetchone()
        if row is not None and row[0] < 0.1:
            conn.execute("SELECT setseed(%s)", [seed / 1000])
            return
    pytest.fail("no seed gives a number below 0.1")


@pytest.mark.parametrize(
    ("vacuum", "pinned"),
    [("VACUUM", True), ("ANALYZE", True), ("VACUUM ANALYZE", False)],  # an ANALYZE that sees no held task
    ids=["while a snapshot is open", "analysed while a snapshot is open", "analysed"],
)
def test_a_poll_costs_the_same_beside_any_number_of_pending_or_finished_tasks(
    own_queue: TaskQueue, own_dsn: str, vacuum: str, pinned: bool
) -> None:
    queue = own_queue
    owner = queue.register("owner")
    bound = {"poll": 350, "ready": 24, "release": 250, "fail": 250, "complete": 250}  # a walk over all touches 700
    queue.alter_topic("work", TopicPolicy(RetryPolicy(max_attempts=2)))
    queue.push_stream("work", numbered(30_000))
    finished = queue.poll("work", owner, 20_000)
    with connect(own_dsn) as reader:
        if pinned:  # an automatic ANALYZE of the database has one, too
            reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            reader.execute("SELECT FROM taskq.tasks LIMIT 1")
        queue.complete(owner, dict.fromkeys(finished, Result.SUCCESS))
        queue.push("work", [NewTask(f"later {n}", delay=timedelta(days=1), priority=5) for n in range(5000)])
        queue.conn.execute(vacuum.encode())
        tasks = queue.poll("work", owner, 10)  # first calls read the catalogue
        queue.poll("work", few := queue.register("few"), 5)
        queue.ready("work")
        make_next_poll_advance_fronts(queue.conn)
        cost = {
            "poll": pages_of(queue, lambda: queue.poll("work", owner, 10)),
            "ready": pages_of(queue, lambda: queue.ready("work")),
            "release": pages_of(queue, lambda: queue.release(few)),
            "fail": pages_of(queue, lambda: queue.complete(owner, dict.fromkeys(tasks[:5], Result.FAILURE))),
            "complete": pages_of(queue, lambda: queue.complete(owner, dict.fromkeys(tasks[5:], Result.SUCCESS))),
        }
    assert {name: pages for name, pages in cost.items() if pages > bound[name]} == {}
