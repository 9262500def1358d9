"""Connections that acknowledge bytes and never answer, and calls that outlive their session on the server."""

import threading
from datetime import timedelta

import psycopg
import pytest

from airflow_provider_taskq.queue import NewTask, State, Task, TaskQueue, TopicPolicy, connect
from airflow_provider_taskq.queue.connection import CallLimit, limit_calls
from airflow_provider_taskq.queue.errors import CallTimeout
from airflow_provider_taskq.worker import Batch, Timeouts, services
from airflow_provider_taskq.worker.services import NotificationListener
from airflow_provider_taskq.worker.worker import CHANNEL
from tests.faults.conftest import MakeWorker, Named, ends
from tests.faults.tcp_proxy import TcpProxy
from tests.internals import interrupted, lapse_lease
from tests.queue.conftest import until
from tests.worker.conftest import Gate

pytestmark = pytest.mark.promise("a connection never answers")

SECOND = timedelta(seconds=1)


def all_succeeded(queue: TaskQueue) -> bool:
    return set(ends(queue).values()) == {State.SUCCEEDED}


def test_an_abandoned_call_is_cancelled_on_the_server(dsn: str, conn: psycopg.Connection) -> None:
    slow = connect(dsn, autocommit=True)
    limit_calls(slow, CallLimit(0.5))
    pid = slow.info.backend_pid
    query = "SELECT pid FROM pg_stat_activity WHERE pid = %s"
    assert conn.execute(query, (pid,)).fetchone() == (pid,)
    with pytest.raises(CallTimeout):
        slow.execute("SELECT pg_sleep(600)")
    assert slow.closed
    until(lambda: conn.execute(query, (pid,)).fetchone() is None)


def test_a_call_that_keeps_receiving_rows_is_not_abandoned(dsn: str) -> None:
    with connect(dsn, autocommit=True) as conn:
        limit_calls(conn, CallLimit(0.5))
        rows = conn.execute("SELECT repeat('x', 10000), pg_sleep(0.01) FROM generate_series(1, 200)").fetchall()
    assert len(rows) == 200


@pytest.mark.faults
def test_a_heartbeat_without_an_answer_is_sent_again_on_another_connection(
    dsn: str, queue: TaskQueue, proxy: TcpProxy, run_worker: MakeWorker
) -> None:
    gate = Gate()
    queue.push("work", ["a"])
    worker = run_worker(Named(proxy.dsn(dsn)), gate, lease=SECOND * 6)
    assert gate.began.wait(120)
    [registered] = queue.owners()
    until(lambda: queue.owners()[0].lease_until > registered.lease_until)
    silent = proxy.wait_for("heartbeat")
    silent.freeze()
    proxy.wait_for("heartbeat", after=silent.number)
    [before] = queue.owners()
    until(lambda: queue.owners()[0].lease_until > before.lease_until)
    gate.open.set()
    until(lambda: all_succeeded(queue))
    assert worker.statistics().abandoned == 0


@pytest.mark.faults
def test_a_worker_whose_heartbeats_fall_silent_does_not_take_its_own_lease(
    dsn: str, queue: TaskQueue, proxy: TcpProxy, run_worker: MakeWorker
) -> None:
    queue.alter_topic("work", TopicPolicy(max_crashes=1))
    started, go_on = threading.Event(), threading.Event()

    def handle(_: Task) -> None:
        if not started.is_set():
            started.set()
            go_on.wait(60)

    queue.push("work", ["a"])
    worker = run_worker(Named(proxy.dsn(dsn)), handle, lease=SECOND * 3)
    assert started.wait(120)
    proxy.freeze("heartbeat")
    until(lambda: worker.statistics().abandoned == 1)
    expired = queue.register("other", SECOND * 60)  # taken by the worker's expiry: it ran after its own lease lapsed
    lapse_lease(queue.conn, expired.name)
    until(lambda: queue.owner(expired.name) is None)
    assert ends(queue) == {"a": State.ACTIVE}
    go_on.set()
    until(lambda: all_succeeded(queue))


@pytest.mark.faults
def test_a_lease_that_was_lost_by_the_clock_is_taken_once_heartbeats_get_through_again(
    dsn: str, queue: TaskQueue, proxy: TcpProxy, run_worker: MakeWorker
) -> None:
    started, go_on, handled = threading.Event(), threading.Event(), []

    def handle(task: Task) -> None:
        handled.append(task.identifier)
        if len(handled) == 1:
            started.set()
            go_on.wait(60)

    queue.push("work", ["a"])
    worker = run_worker(Named(proxy.dsn(dsn)), handle, lease=SECOND * 3, workers=2)
    assert started.wait(120)
    proxy.freeze("heartbeat")
    until(lambda: worker.statistics().abandoned == 1)
    proxy.thaw()
    until(lambda: all_succeeded(queue))  # by the other thread, as the first one is still busy
    go_on.set()
    assert handled == ["a", "a"]


def test_a_participant_may_take_longer_than_a_call_of_the_queue(
    dsn: str, queue: TaskQueue, run_worker: MakeWorker
) -> None:
    called = []

    def handle(_: Task, batch: Batch) -> None:
        def write(within: TaskQueue, _: object) -> None:
            called.append(1)
            within.conn.execute("SELECT pg_sleep(1.5)")

        batch.in_commit(write)

    queue.push("work", ["a"])
    run_worker(dsn, handle, timeouts=Timeouts(call=SECOND * 0.5))
    until(lambda: all_succeeded(queue))
    assert called == [1]


def test_a_listener_without_notifications_tests_its_connection(
    dsn: str, queue: TaskQueue, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "_SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(services, "_ANSWER_SECONDS", 0.5)
    heard: list[str] = []
    listening = threading.Semaphore(0)
    listener = NotificationListener(lambda: connect(proxy.dsn(dsn)), CHANNEL, heard.append, listening.release)
    listener.start()
    try:
        assert listening.acquire(timeout=120)
        for link in proxy.links():
            link.freeze()
        assert listening.acquire(timeout=120)  # on another connection
        queue.conn.execute("SELECT pg_notify(%s, 'hello')", (CHANNEL,))
        until(lambda: heard == ["hello"])
    finally:
        listener.stop()


# A claim waits for the test, as it waits for a slow disk elsewhere. A look at the held tasks does not.
SLOW_CLAIM = "IF OLD.identifier = 'a' THEN PERFORM pg_advisory_xact_lock_shared(1); END IF;"
CLAIMING = """SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event = 'advisory' AND query LIKE '%%taskq.poll(%%'"""
POLLED_IN_VAIN = """SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND state = 'idle' AND query LIKE '%%taskq.poll(%%'"""


def count(queue: TaskQueue, query: str) -> int:
    [found] = queue.conn.execute(query.encode()).fetchone() or (0,)
    return int(found)


@pytest.mark.promise("A worker continues after errors of polls, handlers and connections")
@pytest.mark.parametrize("others", [0, 20_000], ids=["idle", "busy"])
def test_a_task_is_handled_that_a_poll_claims_after_its_worker_has_connected_again(
    dsn: str, queue: TaskQueue, proxy: TcpProxy, run_worker: MakeWorker, others: int
) -> None:
    """A busy worker polls together with each completion, and has to look, too."""
    handled, busy = threading.Event(), threading.Event()

    def handle(task: Task) -> None:
        (handled if task.identifier == "a" else busy).set()

    with interrupted(queue.conn, "claim", SLOW_CLAIM), connect(dsn) as blocker:
        blocker.execute("SELECT pg_advisory_xact_lock(1)")
        queue.push("work", ["a"])
        run_worker(proxy.dsn(dsn), handle, workers=1, lease=SECOND * 6)
        until(lambda: count(queue, CLAIMING) == 1)
        proxy.cut()
        until(lambda: count(queue, POLLED_IN_VAIN) == 1)  # it has connected, looked, and polled again
        queue.push("work", [NewTask("b")] * others)
        assert not others or busy.wait(200)
        blocker.rollback()
        assert handled.wait(200)
    assert not others or queue.count_tasks("work", state=State.READY) > 0
