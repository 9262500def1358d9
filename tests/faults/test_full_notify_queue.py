"""A server whose queue of notifications is full, because a listener stays in a transaction."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta

import psycopg
import pytest

from airflow_provider_taskq.queue import NewTask, Severity, State, Task, TaskQueue, connect, install
from airflow_provider_taskq.worker import Batch
from demo.postgres import EmbeddedPostgres
from tests.conftest import memory
from tests.faults.conftest import MakeWorker, ends
from tests.faults.servers import FAST, programs_of_tests
from tests.queue.conftest import until
from tests.worker.conftest import FatalListener

pytestmark = pytest.mark.promise("A notification that cannot be sent fails neither a push nor a commit")

MINUTE = timedelta(minutes=1)


@pytest.fixture(scope="module")
def small_dsn() -> Iterator[str]:
    """The DSN of a server whose queue of notifications is as small as it can be."""
    with EmbeddedPostgres(parent=memory(), settings=FAST, programs=programs_of_tests()) as server:
        with connect(server.dsn) as conn:
            if conn.info.server_version < 170_000:
                pytest.skip("before PostgreSQL 17 the queue of notifications has 8 GB")
            install(conn)
            conn.commit()
            conn.autocommit = True
            conn.execute("ALTER SYSTEM SET max_notify_queue_pages = 64")
        server.stop()
        server.start()
        with connect(server.dsn, autocommit=True) as conn:
            TaskQueue(conn).create_topic("work", notify=True)
            TaskQueue(conn).create_topic("next", notify=True)
        yield server.dsn


@pytest.fixture
def queue(small_dsn: str) -> Iterator[TaskQueue]:
    """The topics `work` and `next`, with `notify` and without tasks."""
    with connect(small_dsn, autocommit=True) as conn:
        until(lambda: conn.execute("SELECT pg_notification_queue_usage()").fetchone() == (0,))
        conn.execute("SELECT taskq.purge_all(topic) FROM unnest('{work,next}'::text[]) AS topic")
        yield TaskQueue(conn)


@pytest.fixture
def idle_listener(small_dsn: str) -> Iterator[psycopg.Connection]:
    """A session that listens, and stays in a transaction until a test ends it."""
    with psycopg.connect(small_dsn) as conn:
        conn.execute("LISTEN anything")
        conn.commit()
        conn.execute("SELECT")
        yield conn


def fill(queue: TaskQueue, share: float = 1.0) -> None:
    """Fills this share of the server's queue of notifications, as another program does."""
    with suppress(psycopg.errors.ProgramLimitExceeded):
        while queue.conn.execute("SELECT pg_notification_queue_usage() < %s", (share,)).fetchone() == (True,):
            queue.conn.execute("SELECT pg_notify('anything', repeat('x', 7900))")


CALLS: dict[str, Callable[[TaskQueue], object]] = {
    "push of one": lambda queue: queue.push("work", ["a"]),
    "push of many": lambda queue: queue.push("work", ["a", NewTask("b", delay=MINUTE)]),
    "offer": lambda queue: [queue.offer("work", "a"), queue.offer("work", "a")],
    "reset": lambda queue: queue.junction("work", [["suspended"]]),
    "notify": lambda queue: queue.notify("work"),
    "worker": lambda queue: [queue.activate_worker("w"), queue.deactivate_worker("w")],
}


@pytest.mark.usefixtures("idle_listener")
@pytest.mark.parametrize("call", CALLS)
def test_a_full_queue_of_notifications_fails_no_call(queue: TaskQueue, call: str) -> None:
    queue.push("work", [NewTask("suspended", suspended=True)])
    fill(queue)
    CALLS[call](queue)


@pytest.mark.usefixtures("idle_listener")
def test_pushes_leave_half_of_the_queue_of_notifications_to_other_programs(queue: TaskQueue) -> None:
    queue.conn.execute(
        "CREATE PROCEDURE push_many() LANGUAGE plpgsql AS $$ BEGIN FOR number IN 1..25000 LOOP"
        " PERFORM taskq.push('work', 'a'); COMMIT; END LOOP; END $$"
    )
    queue.conn.execute("CALL push_many()")
    assert queue.conn.execute("SELECT pg_notification_queue_usage()").fetchone() == (0.5,)


@pytest.mark.usefixtures("idle_listener")
def test_a_worker_whose_follow_ups_cannot_notify_succeeds(
    queue: TaskQueue, small_dsn: str, run_worker: MakeWorker
) -> None:
    def handle(task: Task, batch: Batch) -> None:
        batch.push(task, "next", [task.identifier])

    queue.push("work", ["a", "b", "c"])
    fill(queue)
    run_worker(small_dsn, handle, size=2)
    until(lambda: State.READY not in (found := ends(queue).values()) and State.ACTIVE not in found)
    assert set(ends(queue).values()) == {State.SUCCEEDED}
    assert sorted(task.identifier for task in queue.page("next")) == ["a", "b", "c"]


def test_finished_work_is_not_failed_by_a_notification_of_the_handlers_own(
    queue: TaskQueue, small_dsn: str, idle_listener: psycopg.Connection, run_worker: MakeWorker
) -> None:
    fatal: list[BaseException] = []

    def notify(within: TaskQueue, _: object) -> None:
        within.conn.execute("NOTIFY anything")

    def handle(task: Task, batch: Batch) -> None:
        batch.in_commit(notify, task)

    queue.push("work", ["a"])
    fill(queue)
    run_worker(small_dsn, handle, listener=FatalListener(fatal.append))
    until(lambda: fatal or ends(queue) == {"a": State.FAILED})
    assert ends(queue) == {"a": State.ACTIVE}
    assert isinstance(fatal[0], psycopg.errors.ProgramLimitExceeded)
    idle_listener.rollback()
    queue.push("next", ["b"])  # PostgreSQL empties the queue at the next look at its usage
    until(lambda: ends(queue) == {"a": State.SUCCEEDED})
    [task] = queue.page("work")
    assert task.attempt == 1


@pytest.mark.promise("Health names each problem of the queue, and the session that causes it")
def test_a_queue_of_notifications_that_fills_is_reported_with_the_session_that_listens(
    queue: TaskQueue, idle_listener: psycopg.Connection
) -> None:
    def severity() -> Severity:
        return next(each.severity for each in queue.health() if each.subject == "notifications")

    assert severity() is Severity.FINE
    for share, expected in ((0.1, Severity.NOTICE), (0.25, Severity.WARNING), (0.5, Severity.CRITICAL)):
        fill(queue, share)
        assert severity() is expected
    [finding] = [each for each in queue.health() if each.subject == "notifications"]
    assert (finding.pid, finding.value) == (idle_listener.info.backend_pid, 50)
