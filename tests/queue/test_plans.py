"""Plans: each frequent call reads few rows and pages, with any statistics."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from airflow_provider_taskq.queue import (
    Condition,
    Insertion,
    NewTask,
    Order,
    Owner,
    Result,
    State,
    Task,
    TaskQueue,
    connect,
)
from tests.internals import SCHEMAS, stop_autovacuum, store_tasks
from tests.queue.explained import Explained, explain

pytestmark = pytest.mark.promise("The cost of a call does not grow with the other tasks of the queue")

Call = Callable[[TaskQueue, Owner, list[Task]], object]
SIZE = 10
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Guard:
    """A call on at most SIZE tasks, how many rows of a table or index it may read, and how many pages it may touch."""

    call: Call
    rows: int = 3 * SIZE
    pages: int = 1000


def poll(condition: Condition, order: Order = Order.FIRST_IN_FIRST_OUT) -> Call:
    """A poll that the caller rolls back."""
    return lambda queue, owner, _held: queue.poll("work", owner, SIZE, order, condition)


def remove_succeeded(queue: TaskQueue) -> None:
    """An upkeep that finds every SUCCEEDED task to be old enough."""
    queue.alter_topic("work", keep_succeeded=0)
    assert queue.maintain().purged > 0


# A poll under a condition reads about a thousand due tasks if most of them do not have their identifiers' turns.
TURNS = (200 * SIZE, 6000)
SINGULAR = Condition.SINGULAR_BY_IDENTIFIER
GUARDS: dict[str, Guard] = {
    "push": Guard(lambda queue, _owner, _held: queue.push("work", ["x", NewTask("y", priority=5)])),
    "replace": Guard(lambda queue, _owner, _held: queue.push("work", ["rare"], Insertion.REPLACE)),
    "poll": Guard(poll(Condition.NONE)),
    "poll last in first out": Guard(poll(Condition.NONE, Order.LAST_IN_FIRST_OUT)),
    "poll singular": Guard(poll(SINGULAR), *TURNS),
    "poll suspend on failure": Guard(poll(Condition.SINGULAR_BY_IDENTIFIER_SUSPEND_ON_FAILURE), *TURNS),
    "poll suspend until success": Guard(poll(Condition.SINGULAR_BY_IDENTIFIER_SUSPEND_UNTIL_SUCCESS), *TURNS),
    "poll batch": Guard(lambda queue, owner, _held: queue.poll_batch("work", owner, 3, 2), *TURNS),
    "ready": Guard(lambda queue, _owner, _held: queue.ready("work", SIZE)),
    "ready singular": Guard(lambda queue, _owner, _held: queue.ready("work", SIZE, SINGULAR), *TURNS),
    "complete": Guard(lambda queue, owner, held: queue.complete(owner, dict.fromkeys(held, Result.SUCCESS))),
    "complete failures": Guard(
        lambda queue, owner, held: queue.complete(owner, dict.fromkeys(held, Result.FAILURE)), 5 * SIZE
    ),
    # PostgreSQL 17 makes a bitmap of these, also of the entries that earlier holds have left until the next vacuum.
    "held": Guard(lambda queue, owner, _held: queue.held(owner), 50 * SIZE),
    "release": Guard(lambda queue, owner, _held: queue.release(owner), 50 * SIZE),
    "expire": Guard(lambda queue, _owner, _held: queue.expire()),
    "maintain": Guard(
        lambda queue, _owner, _held: remove_succeeded(queue),
        25_000,  # to remove 500; before PostgreSQL 17 it reads a topic whole whose statistics say that it is small
        20_000,
    ),
    "revive": Guard(lambda queue, _owner, _held: queue.revive("work", State.FAILED, "APPEND", size=SIZE), 5 * SIZE),
    "reassign": Guard(lambda queue, _owner, _held: queue.reassign("work", Result.SUCCESS, state=State.SUSPENDED)),
    "junction": Guard(lambda queue, _owner, _held: queue.junction("work", [["task-1", "rare"]], "ETERNAL")),
    "purge": Guard(lambda queue, _owner, _held: queue.purge("work", state=State.READY, size=SIZE)),
    "ticks": Guard(lambda queue, _owner, _held: queue.install_ticks("work", "tick", "hash", [(NOON, None)])),
    "latest": Guard(lambda queue, _owner, _held: queue.latest("work", ["task-1", "task-2"])),
    "task": Guard(lambda queue, _owner, held: queue.task("work", held[0].sequence)),
    "page": Guard(lambda queue, _owner, _held: queue.page("work", size=SIZE)),
    "page of a state": Guard(lambda queue, _owner, _held: queue.page("work", size=SIZE, state=State.READY)),
    "page of failures": Guard(lambda queue, _owner, _held: queue.page("work", size=SIZE, state=State.FAILED)),
    "page of an identifier": Guard(lambda queue, _owner, _held: queue.page("work", size=SIZE, identifier="task-1")),
}


def fill(conn: psycopg.Connection, ready: int, ended: int, share: int) -> None:
    """Puts this number of ended tasks, of a thousand identifiers, into the topic, and READY ones behind them.

    A third of the ended tasks have failed. One in `share` of the READY ones is a retry.
    """
    states = [State.FAILED, State.SUCCEEDED, State.SUCCEEDED]
    store_tasks(conn, 1, ended, states=states, attempts=[1], name="old task-", names=1000)
    store_tasks(conn, ended + 1, ended + ready, attempts=[1] + [0] * (share - 1), names=1000)


@contextmanager
def database(server_dsn: str, template: str) -> Iterator[str]:
    """The DSN of a database for tests that fill it in their own way."""
    name = f"taskq_plans_{uuid4().hex[:12]}"
    with psycopg.connect(server_dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template)))
        yield make_conninfo(server_dsn, dbname=name)
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def never_analysed(queue: TaskQueue) -> None:
    """A few thousand rows in tables that were never analyzed."""
    fill(queue.conn, 3000, 3000, 3)


def emptied(queue: TaskQueue) -> None:
    """Tables with the dead rows of twenty thousand removed tasks, and a few new tasks."""
    owner = queue.register("past", timedelta(hours=1))
    queue.push_stream("work", (NewTask(f"old {number}") for number in range(20_000)))
    queue.conn.execute("ANALYZE")
    for _ in range(20):
        queue.complete(owner, dict.fromkeys(queue.poll("work", owner, 1000), Result.SUCCESS))
    queue.push("work", [f"task-{number}" for number in range(300)])


def three_hundred_thousand_rows(queue: TaskQueue) -> None:
    """A backlog and a history in analyzed tables."""
    fill(queue.conn, 300_000, 30_000, 97)
    queue.conn.execute("VACUUM ANALYZE")


@pytest.fixture(
    scope="module",
    params=[never_analysed, emptied, pytest.param(three_hundred_thousand_rows, marks=pytest.mark.slow)],
    ids=lambda made: made.__name__.replace("_", " "),
)
def filled(request: pytest.FixtureRequest, server_dsn: str, template: str) -> Iterator[TaskQueue]:
    """A queue with a topic whose tables only the test vacuums or analyzes."""
    with database(server_dsn, template) as dsn, connect(dsn, autocommit=True) as conn:
        stop_autovacuum(conn)
        queue = TaskQueue(conn)
        queue.create_topic("work")
        request.param(queue)
        queue.push("work", ["rare", "rare"])
        yield queue


def explained(queue: TaskQueue, call: Call) -> Explained:
    """The plan of the second of two equal calls, because the first one makes the plans. Both are undone."""
    for _ in range(2):
        owner = queue.register("owner", timedelta(hours=1))
        held = queue.poll("work", owner, SIZE)
        with queue.conn.transaction(force_rollback=True):
            found = explain(queue.conn, lambda: call(queue, owner, held))  # noqa: B023 - called at once
        queue.release(owner)
    return found


@pytest.mark.parametrize("name", GUARDS)
def test_a_call_reads_few_rows_and_pages(filled: TaskQueue, name: str) -> None:
    guard = GUARDS[name]
    seen = explained(filled, guard.call)
    assert {where: rows for where, rows in seen.rows.items() if rows > guard.rows} == {}, seen
    assert seen.pages <= guard.pages, seen


WITH_SETTINGS = """SELECT oid::regprocedure::text FROM pg_proc
    WHERE pronamespace = ANY (%s::regnamespace[]) AND proconfig IS NOT NULL"""
METHODS = (
    "hashjoin",
    "mergejoin",
    "nestloop",
    "hashagg",
    "sort",
    "material",
    "indexscan",
    "indexonlyscan",
    "bitmapscan",
    "seqscan",
)
FORCED = {
    "nested loops": {"hashjoin", "mergejoin", "material"},
    "nested loops over whole tables": {"hashjoin", "mergejoin", "material", "indexscan", "indexonlyscan", "bitmapscan"},
    "hashes": {"nestloop", "mergejoin"},
    "merges": {"nestloop", "hashjoin"},
    "bitmaps": {"indexscan", "indexonlyscan", "seqscan"},
}


@pytest.mark.promise("A poll never takes more tasks than requested")
@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
@pytest.mark.parametrize("forced", FORCED.values(), ids=FORCED.keys())
@pytest.mark.parametrize("condition", Condition)
def test_a_poll_takes_exactly_its_size_under_every_forced_plan(
    steered: TaskQueue, condition: Condition, forced: set[str], mode: str
) -> None:
    """The settings of the functions are removed first, so that the server uses the forced plans."""
    with steered.conn.transaction(force_rollback=True):
        for method in METHODS:
            steered.conn.execute(f"SET LOCAL enable_{method} = {'off' if method in forced else 'on'}".encode())
        steered.conn.execute(f"SET LOCAL plan_cache_mode = {mode}".encode())
        owner = steered.register("owner")
        for size, order in (
            (1, Order.FIRST_IN_FIRST_OUT),
            (7, Order.LAST_IN_FIRST_OUT),
            (50, Order.FIRST_IN_FIRST_OUT),
        ):
            polled = steered.poll("work", owner, size, order, condition)
            assert len({task.sequence for task in polled}) == len(polled) == size
        assert steered.count("work", state=State.ACTIVE)["work"][State.ACTIVE].count == 58


@pytest.fixture(scope="module")
def steered(server_dsn: str, template: str) -> Iterator[TaskQueue]:
    """A queue whose functions have no settings of their own, and 200 tasks in the topic."""
    with database(server_dsn, template) as dsn, connect(dsn, autocommit=True) as conn:
        for (function,) in conn.execute(WITH_SETTINGS, (SCHEMAS,)).fetchall():
            conn.execute(f"ALTER FUNCTION {function} RESET ALL".encode())
        queue = TaskQueue(conn)
        queue.create_topic("work")
        queue.push("work", [f"task-{number}" for number in range(200)])
        yield queue


def locks(queue: TaskQueue, owner: Owner) -> dict[str, int]:
    """The number of tables and indexes that a transaction of a push, a poll and a completion has locked."""
    polled: list[Task] = []
    works: dict[str, Callable[[], object]] = {
        "push": lambda: queue.push("work", ["x"]),
        "poll": lambda: polled.extend(queue.poll("work", owner)),
        "complete": lambda: queue.complete(owner, dict.fromkeys(polled, Result.SUCCESS)),
    }
    query = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation'"
    counts: dict[str, int] = {}
    for name, work in works.items():
        with queue.conn.transaction():
            work()
            [counts[name]] = queue.conn.execute(query.encode()).fetchone() or (0,)
    return counts


@pytest.mark.slow
def test_a_call_locks_as_much_at_two_thousand_topics_as_at_one(own_queue: TaskQueue, own_dsn: str) -> None:
    queue = own_queue
    owner = queue.register("owner", timedelta(hours=1))
    for _ in range(8):  # after five calls the server thinks again about how to plan
        few = locks(queue, owner)
    with queue.conn.transaction():
        for number in range(2000):
            queue.create_topic(f"topic {number}")
            queue.push(f"topic {number}", ["a"])
    queue.conn.execute("VACUUM ANALYZE")
    with connect(own_dsn, autocommit=True) as conn:
        for _ in range(8):
            many = locks(TaskQueue(conn), owner)
    assert {name: count for name, count in many.items() if count > few[name] + 3} == {}


def test_a_push_and_a_poll_of_one_task_run_few_statements(own_queue: TaskQueue) -> None:
    own_queue.create_topic("few", notify=True)
    own_queue.push("few", [NewTask("the first in a minute", suspended=True)])
    owner = own_queue.register("owner", timedelta(hours=1))
    polled: list[Task] = []
    pushed = explain(own_queue.conn, lambda: own_queue.push("few", ["a"]))
    taken = explain(own_queue.conn, lambda: polled.extend(own_queue.poll("few", owner)))
    assert [task.identifier for task in polled] == ["a"]
    assert pushed.statements <= 12
    assert taken.statements <= 13
