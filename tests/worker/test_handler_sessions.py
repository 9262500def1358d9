"""What a handler changes in the session of its transaction ends with its call, in every runner that has one."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from airflow_provider_taskq.consumer import Consumer, ConsumerGroup
from airflow_provider_taskq.queue import Task, TaskQueue, connect
from airflow_provider_taskq.worker import Batch, Worker, each
from tests.consumer.consumers import NEVER, quick, read_all
from tests.queue.conftest import known

pytestmark = pytest.mark.promise("What a handler changes in its session ends with its call")

Handle = Callable[[Task, TaskQueue], None]
Source = str | Callable[[], psycopg.Connection[Any]]
Run = Callable[[Source, TaskQueue, Handle], None]

CHANGES = {
    "search path": "SET search_path TO tenant_a",
    "set_config": "SELECT set_config('search_path', 'tenant_a', false)",
    "a path of the transaction": "SET LOCAL search_path TO tenant_a",
    "custom parameter": "SELECT set_config('app.tenant', 'a', false)",
    "time zone": "SET TimeZone TO 'Asia/Tokyo'",
    "timeout": "SET statement_timeout TO '77s'",
    "temporary table": "CREATE TEMP TABLE effect AS SELECT 'x' AS identifier",
    "lock": "SELECT pg_advisory_lock(4711)",
    "role": "SET ROLE pg_monitor",
    "user": "SET SESSION AUTHORIZATION pg_monitor",
    "prepared statement": "PREPARE plan AS SELECT 1",
    "channel": "LISTEN somewhere",
    "cursor": "DECLARE mine CURSOR WITH HOLD FOR SELECT 1",
}
OUTLIVES_A_ROLLBACK = {"lock", "prepared statement"}

STATE = """
    SELECT current_setting('search_path'), nullif(current_setting('app.tenant', true), ''), current_setting('TimeZone'),
           current_setting('statement_timeout'), current_user, session_user, to_regclass('effect')::oid,
           (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND pid = pg_backend_pid()),
           (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_listening_channels()),
           (SELECT count(*) FROM pg_cursors WHERE is_holdable)
"""


def commit_hooks(size: int) -> Run:
    """Runs a handler as a commit hook of each task, in batches of this size."""

    def run(dsn: Source, _: TaskQueue, handle: Handle) -> None:
        def register(task: Task, batch: Batch) -> None:
            batch.in_commit(lambda queue, _: handle(task, queue), task)

        Worker(dsn, "work", each(register), size=size).drain()

    return run


def consumer(transaction_size: int) -> Run:
    """Runs a handler in the transactions of a consumer."""

    def run(dsn: Source, queue: TaskQueue, handle: Handle) -> None:
        group = ConsumerGroup("readers")
        group.on()(lambda event, queue: handle(event, queue))
        config = quick(transactional=True, transaction_size=transaction_size, retry=NEVER)
        read_all(queue, Consumer(dsn, group, "work", config))

    return run


RUNNERS = {
    "hooks of several batches": commit_hooks(1),
    "hooks of one batch": commit_hooks(3),
    "transactions of a consumer": consumer(1),
    "one transaction of a consumer": consumer(3),
}


@pytest.fixture(name="schema")
def tenant_schema(queue: TaskQueue) -> Any:
    """A schema `tenant_a` and the schema `public`, each with a table for effects."""
    queue.conn.execute("CREATE SCHEMA tenant_a; CREATE TABLE tenant_a.effect (identifier text)")
    queue.conn.execute("CREATE TABLE public.effect (identifier text)")
    yield
    queue.conn.execute("DROP SCHEMA tenant_a CASCADE; DROP TABLE public.effect")


@pytest.mark.usefixtures("schema")
@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_handler_finds_the_session_as_if_no_handler_had_run_before(
    dsn: str, queue: TaskQueue, change: str, runner: str
) -> None:
    tasks = queue.push("work", ["a", "b", "c"])
    found: list[tuple[object, ...]] = []

    def handle(task: Task, own: TaskQueue) -> None:
        found.extend(own.conn.execute(STATE, prepare=True).fetchall())
        own.conn.execute("INSERT INTO effect VALUES (%s)", (task.identifier,))
        own.conn.execute(CHANGES[change].encode())
        if task.identifier == "a" and change in OUTLIVES_A_ROLLBACK:
            raise ValueError

    RUNNERS[runner](dsn, queue, handle)
    assert len(found) >= 3
    assert set(found) == {found[0]}
    written = [row[0] for row in queue.conn.execute("SELECT identifier FROM public.effect ORDER BY 1")]
    assert written == (["b", "c"] if change in OUTLIVES_A_ROLLBACK else ["a", "b", "c"])
    assert known(queue, tasks[2]).error is None


@pytest.mark.usefixtures("schema")
@pytest.mark.parametrize("runner", ["hooks of one batch", "one transaction of a consumer"])
def test_a_reset_keeps_what_the_function_that_connects_has_set_and_the_floor_of_the_pushes(
    dsn: str, queue: TaskQueue, runner: str
) -> None:
    queue.create_topic("mail")
    queue.push("work", ["a", "b", "c"])
    found: list[Any] = []

    def connect_as_tenant() -> psycopg.Connection[Any]:
        conn = connect(dsn, autocommit=True)
        conn.execute("SET search_path TO tenant_a; SET statement_timeout TO '77s'")
        return conn

    def handle(task: Task, own: TaskQueue) -> None:
        own.push("mail", [task.identifier])
        own.conn.execute("INSERT INTO effect VALUES ('x'); SET search_path TO public; SET statement_timeout TO 0")
        found.extend(own.conn.execute("SELECT current_setting('taskq.log_floor')").fetchall())

    RUNNERS[runner](connect_as_tenant, queue, handle)
    assert len(found) == 3
    assert set(found) == {found[0]}, "else each push of a long transaction takes a lock of its own"
    assert queue.conn.execute("SELECT count(*) FROM tenant_a.effect").fetchall() == [(3,)]
