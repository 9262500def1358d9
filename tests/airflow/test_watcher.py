"""The watcher checks all kinds of waits on one connection, wakes on notifications, and retries."""

import asyncio
import gc
import logging
import os
import signal
import time
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise

import psycopg
import pytest

from airflow_provider_taskq.hooks.taskq import TaskQAsyncHook
from airflow_provider_taskq.queue import NewTask, Result, TaskQueue, TaskQueueError, UnknownTopic, connect
from airflow_provider_taskq.triggers import watcher
from airflow_provider_taskq.triggers.waits import JunctureWait, QueryResult, ReadyWait, StateWait, Wait
from airflow_provider_taskq.triggers.watcher import Outcome, PollSchedule, get_watcher
from demo.postgres import EmbeddedPostgres
from tests.airflow.conftest import Connect
from tests.airflow.test_trigger import LINES, in_loop, until
from tests.internals import lapse_lease, make_upkeep_due
from tests.queue.conftest import lapse

pytestmark = [pytest.mark.usefixtures("airflow_connection"), pytest.mark.promise("A deferred gate uses no worker slot")]

ROUNDING = 1e-6  # seconds
SUCCEEDED, FAILED = frozenset({"SUCCEEDED"}), frozenset({"FAILED"})
LISTENING = f"{LINES} AND query = 'LISTEN taskq' AND state = 'idle'"  # idle: LISTEN has ended


def waiting(wait: Wait[Outcome], conn_id: str = "taskq_default") -> "asyncio.Task[Outcome]":
    return asyncio.ensure_future(get_watcher(conn_id).wait_for(wait))


@pytest.fixture
def lines(conn: psycopg.Connection) -> Callable[[], int]:
    return lambda: len(conn.execute(LINES).fetchall())


def test_waits_of_all_kinds_share_one_connection(queue: TaskQueue, lines: Callable[[], int]) -> None:
    async def test() -> None:
        queue.push("work", [NewTask("a", suspended=True), NewTask("b", suspended=True)])
        ready = waiting(ReadyWait("work", 3))
        state = waiting(StateWait("work", ("a", "c"), frozenset({"READY"}), FAILED))
        juncture = waiting(JunctureWait("gate", "work", (("a", "b"), ("c",))))
        await until(lambda: queue.ready("work", 9) == 2)  # the first check has released the first group
        assert lines() == 1
        assert not juncture.done()
        queue.push("work", [NewTask("c", suspended=True)])
        assert await juncture == 2
        assert await ready == 3
        assert await state == {"a": "READY", "c": "READY"}

    in_loop(test)


def test_equal_waits_share_one_query_and_end_together(queue: TaskQueue) -> None:
    async def test() -> None:
        waits = [waiting(ReadyWait("work", 1 + number % 2)) for number in range(500)]
        await asyncio.sleep(0)
        registry = get_watcher("taskq_default")._registry
        assert (len(registry), len(registry.queries()), len(registry.subscriptions())) == (500, 1, 2)
        queue.push("work", ["a"])
        await asyncio.gather(*waits[::2])
        assert not any(wait.done() for wait in waits[1::2])
        queue.push("work", ["b"])
        await asyncio.gather(*waits)
        assert (len(registry), len(registry.queries()), len(registry.subscriptions())) == (0, 0, 0)

    in_loop(test)


def test_a_query_that_the_server_refuses_ends_only_its_wait(queue: TaskQueue) -> None:
    async def test() -> None:
        others = [waiting(ReadyWait("work")), waiting(StateWait("work", ("a",), frozenset({"READY"}), FAILED))]
        wrong = waiting(JunctureWait("gate", "work", (("a",),), "BOTH"))
        with pytest.raises(TaskQueueError, match="junction 'BOTH' is none of"):
            await wrong
        with pytest.raises(UnknownTopic, match="nowhere"):
            await waiting(StateWait("nowhere", ("a",), SUCCEEDED, FAILED))
        queue.push("work", ["a"])
        assert await asyncio.gather(*others) == [1, {"a": "READY"}]

    in_loop(test)


def test_a_wait_without_queries_ends_immediately() -> None:
    async def test() -> None:
        assert await waiting(StateWait("work", (), SUCCEEDED, FAILED)) == {}

    in_loop(test)


def test_an_old_task_ends_the_wait_before_min_tasks_are_ready(
    queue: TaskQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    outcome = ReadyWait.outcome

    def noted(self: ReadyWait, results: Sequence[QueryResult]) -> int | None:
        if self.max_wait is not None and results[0].waited is not None:
            waited.append(results[0].waited)
        return outcome(self, results)

    monkeypatch.setattr(ReadyWait, "outcome", noted)

    async def test() -> None:
        patient, other = waiting(ReadyWait("work", 5, max_wait=1.0)), waiting(ReadyWait("work", 5))
        began = time.monotonic()
        queue.push("work", ["a"])
        assert await patient == 1
        assert time.monotonic() - began >= 1
        assert not other.done()
        other.cancel()

    in_loop(test)
    assert max(waited[:-1], default=0.0) < 1 <= waited[-1]  # at the first check after a second


def test_a_notification_wakes_the_waits_on_its_topic(
    queue: TaskQueue, conn: psycopg.Connection, connect_airflow: Connect, lines: Callable[[], int]
) -> None:
    connect_airflow("listening", listen=True)
    queue.create_topic("other")

    async def test() -> None:
        watching = get_watcher("listening")
        waits = [waiting(ReadyWait(topic, poll_interval=600), "listening") for topic in ("work", "other")]
        await until(lambda: len(conn.execute(LISTENING).fetchall()) == 1)
        await until(lambda: watching._schedule.due > time.monotonic() + 100)  # the first check is over
        assert lines() == 2
        queue.push("other", ["a"])
        queue.push("work", ["a"])
        queue.notify("work")
        assert await asyncio.wait_for(waits[0], 20) == 1
        assert not waits[1].done()
        queue.notify("other")
        assert await asyncio.wait_for(waits[1], 20) == 1
        await until(lambda: lines() == 0)

    in_loop(test)


def test_a_lost_listener_loses_only_notifications(
    queue: TaskQueue, conn: psycopg.Connection, connect_airflow: Connect
) -> None:
    connect_airflow("listening", listen=True)

    async def test() -> None:
        first = waiting(ReadyWait("work", 1), "listening")
        second = waiting(ReadyWait("work", 2, poll_interval=600), "listening")
        await until(lambda: len(conn.execute(LISTENING).fetchall()) == 1)
        conn.execute(f"SELECT pg_terminate_backend(pid) FROM ({LISTENING}) lines")
        queue.push("work", ["a"])
        assert await first == 1
        await until(lambda: len(conn.execute(LISTENING).fetchall()) == 1)  # the listener reconnects
        queue.push("work", ["b"])
        queue.notify("work")
        assert await asyncio.wait_for(second, 20) == 2

    in_loop(test)


def test_waits_end_while_the_server_process_of_the_listener_hangs(
    own_server: EmbeddedPostgres, connect_airflow: Connect
) -> None:
    connect_airflow("listening", dsn=own_server.dsn, listen=True)

    async def test(conn: psycopg.Connection) -> None:
        wait = waiting(ReadyWait("work"), "listening")
        await until(lambda: len(conn.execute(LISTENING).fetchall()) == 1)
        ((still,),) = conn.execute(LISTENING).fetchall()
        os.kill(still, signal.SIGSTOP)
        try:
            TaskQueue(conn).push("work", ["a"])
            assert await asyncio.wait_for(wait, 20) == 1
        finally:
            os.kill(still, signal.SIGCONT)
        await until(lambda: conn.execute(LINES).fetchall() == [])

    with connect(own_server.dsn, autocommit=True) as conn:
        in_loop(lambda: test(conn))


@pytest.mark.promise("PostgreSQL restarts")
def test_a_listener_reconnects_after_the_server_restarts(
    own_server: EmbeddedPostgres, connect_airflow: Connect
) -> None:
    connect_airflow("listening", dsn=own_server.dsn, listen=True)

    async def test() -> None:
        watching = get_watcher("listening")
        wait = waiting(ReadyWait("work", poll_interval=600), "listening")
        with connect(own_server.dsn, autocommit=True) as conn:
            await until(lambda: len(conn.execute(LISTENING).fetchall()) == 1)
        await asyncio.to_thread(own_server.stop, "immediate")
        await asyncio.to_thread(own_server.start)
        with connect(own_server.dsn, autocommit=True) as conn:
            await until(lambda: len(conn.execute(LISTENING).fetchall()) == 1, 40)
            await until(lambda: watching._schedule.due > time.monotonic() + 100, 40)
            queue = TaskQueue(conn)
            queue.push("work", ["a"])
            queue.notify("work")
            assert await asyncio.wait_for(wait, 20) == 1

    in_loop(test)


@pytest.mark.usefixtures("queue")
def test_a_watcher_that_is_cancelled_while_it_connects_leaves_no_connection_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        connecting = asyncio.Event()

        async def delayed(_: TaskQAsyncHook) -> bool:
            connecting.set()
            await asyncio.Event().wait()
            return False

        monkeypatch.setattr(TaskQAsyncHook, "wants_notifications", delayed)
        wait = waiting(ReadyWait("work"))
        await connecting.wait()
        wait.cancel()  # then the event loop ends

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        in_loop(test)
        gc.collect()
    assert [str(each.message) for each in warned if "still open" in str(each.message)] == []


def test_a_role_that_may_only_read_can_wait_and_leaves_upkeep_to_others(
    queue: TaskQueue,
    dsn: str,
    connect_airflow: Connect,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    role = f"reader_{queue.conn.info.dbname}"
    queue.conn.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'read'")
    try:
        queue.conn.execute("SELECT taskq.grant_access(%s, 'reader')", (role,))
        connect_airflow("reading", dsn=psycopg.conninfo.make_conninfo(dsn, user=role, password="read"))
        monkeypatch.setattr(watcher, "_UPKEEP_INTERVAL", 0.1)
        caplog.set_level(logging.INFO)

        async def test() -> None:
            wait = waiting(ReadyWait("work", poll_interval=0.05), "reading")
            await until(lambda: "Leaving upkeep to other programs" in caplog.text)
            await asyncio.sleep(0.5)  # several upkeeps
            queue.push("work", ["a"])
            assert await wait == 1

        in_loop(test)
        assert caplog.text.count("upkeep") == 1
    finally:
        queue.conn.execute(f"DROP OWNED BY {role}")
        queue.conn.execute(f"DROP ROLE {role}")


@pytest.mark.promise("a worker is killed")
def test_a_waiting_gate_opens_when_the_tasks_of_a_dead_worker_come_back(
    queue: TaskQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watcher expires the lease itself: no worker, drain or maintenance DAG runs."""
    monkeypatch.setattr(watcher, "_UPKEEP_INTERVAL", 0.1)
    queue.push("work", ["a"])
    dead = queue.register("dead")
    assert queue.poll("work", dead)
    queue.register("ghost")
    lapse_lease(queue.conn, "ghost")

    async def test() -> None:
        wait = waiting(ReadyWait("work", poll_interval=0.05))
        await until(lambda: queue.owner("ghost") is None)  # the upkeep has ended its lease
        assert not wait.done()
        lapse(queue, dead)
        assert await wait == 1

    in_loop(test)
    assert queue.owner("dead") is None


def test_a_watcher_removes_the_tasks_that_its_queue_has_kept_long_enough(queue: TaskQueue) -> None:
    queue.create_topic("other", keep_succeeded=0)
    queue.push("other", [f"{number}" for number in range(1_200)])  # more than one call removes
    owner = queue.register("owner")
    queue.complete(owner, dict.fromkeys(queue.poll("other", owner, 1_200), Result.SUCCESS))

    async def test() -> None:
        wait = waiting(ReadyWait("work", poll_interval=600))  # it checks rarely, and carries out upkeep all the same
        await until(lambda: queue.count_tasks("other") == 0)
        wait.cancel()

    in_loop(test)


def test_a_watcher_carries_out_upkeep_once_a_minute(queue: TaskQueue) -> None:
    for name in ("first", "second"):
        queue.register(name)
    lapse_lease(queue.conn, "first")

    async def test() -> None:
        waits = [waiting(ReadyWait("work", poll_interval=0.05)) for _ in range(20)]
        await until(lambda: queue.owner("first") is None)  # the upkeep has ended its lease
        lapse_lease(queue.conn, "second")
        make_upkeep_due(queue.conn)
        await asyncio.sleep(2)
        assert queue.owner("second") is not None
        assert get_watcher("taskq_default")._upkeep_due - asyncio.get_running_loop().time() > 50
        for wait in waits:
            wait.cancel()

    in_loop(test)


@pytest.mark.usefixtures("queue")
def test_an_idle_watcher_slows_down_to_one_check_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded from the schedule, so that slow checks on a loaded machine do not matter."""
    checks: list[tuple[float, float, bool, float]] = []
    checked = PollSchedule.checked

    def noted(self: PollSchedule, now: float, shortest: float, *, eventful: bool, took: float) -> None:
        checked(self, now, shortest, eventful=eventful, took=took)
        checks.append((now, self.due, eventful, took))

    monkeypatch.setattr(PollSchedule, "checked", noted)

    async def test() -> None:
        wait = waiting(ReadyWait("work", poll_interval=0.05))
        await until(lambda: len(checks) >= 12, 50)
        wait.cancel()

    in_loop(test)
    interval = 0.05
    for number, (now, due, eventful, took) in enumerate(checks):
        assert eventful == (number == 0), "only the first check is eventful, because of a new wait"
        pause, rest = due - now, PollSchedule.REST_FACTOR * took
        assert pause >= 0.8 * interval - ROUNDING
        assert pause <= max(1.2 * interval, rest) + ROUNDING, "a long check has a longer rest"
        interval = min(1.5 * interval, PollSchedule.IDLE_INTERVAL)
    assert interval == PollSchedule.IDLE_INTERVAL
    for (_, due, *_), (now, _, _, took) in pairwise(checks):
        assert now - took >= due - ROUNDING, "no check starts before it is due"
