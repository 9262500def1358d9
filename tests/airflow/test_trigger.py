import asyncio
import gc
import os
import signal
import time
from collections.abc import Callable, Coroutine
from typing import Any

import psycopg
import pytest
from airflow.triggers.base import TriggerEvent

from airflow_provider_taskq.queue import TaskQueue, connect
from airflow_provider_taskq.triggers import TaskQTrigger
from airflow_provider_taskq.triggers import watcher as watching
from airflow_provider_taskq.triggers.watcher import Watcher
from demo.postgres import EmbeddedPostgres
from tests.airflow.conftest import Connect

pytestmark = [pytest.mark.usefixtures("airflow_connection"), pytest.mark.promise("A deferred gate uses no worker slot")]

LINES = "SELECT pid FROM pg_stat_activity WHERE application_name = 'airflow-taskq' AND datname = current_database()"


async def first_event(trigger: TaskQTrigger) -> TriggerEvent:
    async for event in trigger.run():
        return event
    raise AssertionError("the trigger ended without an event")


def waiting(topic: str = "work", **arguments: Any) -> "asyncio.Task[TriggerEvent]":
    """Run a trigger concurrently with the test, as a triggerer does."""
    return asyncio.create_task(first_event(TaskQTrigger(**{"topic": topic, "poke_interval": 0.05, **arguments})))


async def until(condition: Callable[[], bool], seconds: float = 200) -> None:
    async with asyncio.timeout(seconds):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110  the server changes it
            await asyncio.sleep(0.02)


def in_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test in an event loop of its own, for at most a minute."""
    asyncio.run(asyncio.wait_for(test(), 60))


@pytest.fixture
def lines(conn: psycopg.Connection) -> Callable[[], int]:
    """Return a function that counts the triggers' connections to the test's server."""
    return lambda: len(conn.execute(LINES).fetchall())


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of waits at each check that has ended."""
    made: list[int] = []
    check = Watcher._check

    async def counted(self: Watcher, *arguments: Any, **whole: Any) -> None:
        waits = len(self._registry)
        await check(self, *arguments, **whole)
        made.append(waits)

    monkeypatch.setattr(Watcher, "_check", counted)
    return made


def test_fires_when_enough_tasks_are_ready(queue: TaskQueue, checks: list[int]) -> None:
    async def test() -> None:
        queue.push("work", ["a"])
        wait = waiting(min_tasks=2)
        await until(lambda: len(checks) > 3)
        assert not wait.done()
        queue.push("work", ["b", "c"])
        assert (await wait).payload == {"status": "ready", "topic": "work", "ready": 2}

    in_loop(test)


def test_counts_under_its_condition(queue: TaskQueue, checks: list[int]) -> None:
    async def test() -> None:
        queue.push("work", ["a", "a", "a"])
        wait = waiting(min_tasks=2, condition="SINGULAR_BY_IDENTIFIER")
        other = waiting(min_tasks=3)
        assert (await other).payload == {"status": "ready", "topic": "work", "ready": 3}
        await until(lambda: len(checks) > 3)
        assert not wait.done(), "three tasks, but one turn"
        queue.push("work", ["b"])
        assert (await wait).payload == {"status": "ready", "topic": "work", "ready": 2}

    in_loop(test)


def test_claims_nothing(queue: TaskQueue) -> None:
    queue.push("work", ["a"])

    async def test() -> None:
        await waiting()

    in_loop(test)
    assert queue.ready("work") == 1
    assert queue.owners() == []


def test_200_waits_share_one_connection_and_one_query(
    queue: TaskQueue, lines: Callable[[], int], checks: list[int]
) -> None:
    topics = [f"topic-{number}" for number in range(50)]
    for topic in topics:
        queue.create_topic(topic)

    async def test() -> None:
        waits = [waiting(topics[number % 50], min_tasks=1 + number // 50) for number in range(200)]
        await until(lambda: checks[-3:] == [200] * 3)
        assert lines() == 1
        began, before = asyncio.get_running_loop().time(), len(checks)
        await until(lambda: len(checks) > before + 10)
        assert asyncio.get_running_loop().time() - began > 10 * 0.05 * 0.8  # for any number of waits
        queue.push(topics[7], ["a", "b"])
        await asyncio.gather(waits[7], waits[57])
        assert [number for number, wait in enumerate(waits) if wait.done()] == [7, 57]
        for topic in topics:
            queue.push(topic, list("abcd"))
        await asyncio.gather(*waits)
        await until(lambda: lines() == 0)

    in_loop(test)


def test_the_event_loop_is_not_blocked(queue: TaskQueue) -> None:
    async def test() -> None:
        longest, busiest = 0.0, 0.0
        waits = [waiting() for _ in range(500)]
        for _ in range(100):
            began, worked = time.monotonic(), time.thread_time()
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - began)
            busiest = max(busiest, time.thread_time() - worked)
        queue.push("work", ["a"])
        await asyncio.gather(*waits)
        assert busiest < 0.25  # CPU time of the loop, which does not depend on the load of the machine
        assert longest < 5

    gc.collect()
    gc.freeze()  # a full garbage collection is not the work of the loop
    try:
        in_loop(test)
    finally:
        gc.unfreeze()


def test_a_cancelled_wait_is_forgotten(queue: TaskQueue, lines: Callable[[], int], checks: list[int]) -> None:
    async def test() -> None:
        one, other = waiting(), waiting()
        await until(lambda: checks[-1:] == [2])
        one.cancel()
        await until(lambda: checks[-1:] == [1])
        other.cancel()
        await until(lambda: lines() == 0)
        queue.push("work", ["a"])
        assert (await waiting()).payload["status"] == "ready"  # the next wait starts the watcher again

    in_loop(test)


def test_an_unknown_topic_ends_its_wait_only(queue: TaskQueue) -> None:
    async def test() -> None:
        other = waiting()
        event = await waiting("nowhere")
        assert event.payload["status"] == "error"
        assert "nowhere" in event.payload["message"]
        queue.push("work", ["a"])
        assert (await other).payload["status"] == "ready"

    in_loop(test)


def test_a_topic_that_is_dropped_ends_its_wait(queue: TaskQueue, checks: list[int]) -> None:
    async def test() -> None:
        wait = waiting()
        await until(lambda: checks != [])
        queue.drop_topic("work")
        message = "topic 'work' was dropped; create it again with: taskq topics create work"
        assert (await wait).payload == {"status": "error", "message": message}

    in_loop(test)


def test_a_missing_schema_ends_the_wait_and_names_the_command(connect_airflow: Connect, empty_dsn: str) -> None:
    connect_airflow(dsn=empty_dsn)

    async def test() -> None:
        event = await waiting()
        assert event.payload["status"] == "error"
        assert "airflow_provider_taskq.queue install" in event.payload["message"]

    in_loop(test)


def test_survives_a_killed_connection(queue: TaskQueue, conn: psycopg.Connection, checks: list[int]) -> None:
    async def test() -> None:
        wait = waiting()
        await until(lambda: checks != [])
        conn.execute(f"SELECT pg_terminate_backend(pid) FROM ({LINES}) lines")
        queue.push("work", ["a"])
        assert (await wait).payload["status"] == "ready"

    in_loop(test)


def test_reconnects_when_the_server_process_hangs(
    own_server: EmbeddedPostgres, connect_airflow: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect_airflow(dsn=own_server.dsn)
    paused, go_on, pause = asyncio.Event(), asyncio.Event(), Watcher._sleep

    async def held(self: Watcher) -> None:
        paused.set()
        await go_on.wait()
        await pause(self)

    monkeypatch.setattr(Watcher, "_sleep", held)

    async def test(conn: psycopg.Connection) -> None:
        wait = waiting()
        await paused.wait()  # the first check is done; it may be slow on a server that has just started
        monkeypatch.setattr(watching, "_CALL_TIMEOUT", 1.0)
        ((still,),) = conn.execute(LINES).fetchall()
        os.kill(still, signal.SIGSTOP)
        try:
            TaskQueue(conn).push("work", ["a"])
            go_on.set()
            assert (await wait).payload["status"] == "ready"
        finally:
            os.kill(still, signal.SIGCONT)
        await until(lambda: conn.execute(LINES).fetchall() == [])

    with connect(own_server.dsn, autocommit=True) as conn:
        in_loop(lambda: test(conn))


@pytest.mark.promise("PostgreSQL restarts")
def test_survives_a_restart_of_the_server(
    own_server: EmbeddedPostgres, connect_airflow: Connect, checks: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    connect_airflow(dsn=own_server.dsn)
    password = str(psycopg.conninfo.conninfo_to_dict(own_server.dsn)["password"])

    async def test() -> None:
        waits = [waiting() for _ in range(20)]
        await until(lambda: checks != [])
        await asyncio.to_thread(own_server.stop, "immediate")
        await until(lambda: "Cannot check waits, will retry" in caplog.text)
        await asyncio.to_thread(own_server.start)
        with connect(own_server.dsn) as connection:
            TaskQueue(connection).push("work", ["a"])
        assert [(await wait).payload["status"] for wait in waits] == ["ready"] * 20

    in_loop(test)
    assert password not in caplog.text
