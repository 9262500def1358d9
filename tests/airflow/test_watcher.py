"""The watcher checks all kinds of waits on one connection, wakes on notifications, and retries."""

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_taskq.hooks.taskq import TaskQHook
from airflow_provider_taskq.queue import (
    InvalidArgument,
    NewTask,
    Result,
    SchemaMismatch,
    TaskQueue,
    UnknownTopic,
    connect,
)
from airflow_provider_taskq.queue.connection import CallLimit, limit_calls
from airflow_provider_taskq.queue.errors import CallTimeout
from airflow_provider_taskq.queue.waits import Found, JunctureWait, Outcome, ReadyWait, StateWait, Wait
from airflow_provider_taskq.triggers import queue_thread, watcher
from airflow_provider_taskq.triggers.queue_thread import QueueThread
from airflow_provider_taskq.triggers.wait_log import WaitLog
from airflow_provider_taskq.triggers.watcher import Watcher, get_watcher
from demo.postgres import EmbeddedPostgres
from tests.airflow.conftest import LINES, Connect, until
from tests.internals import lapse_lease, make_upkeep_due
from tests.queue.conftest import lapse
from tests.roles import logged_in

pytestmark = [pytest.mark.usefixtures("airflow_connection"), pytest.mark.promise("A deferred gate uses no worker slot")]

SUCCEEDED, FAILED = frozenset({"SUCCEEDED"}), frozenset({"FAILED"})


def waiting(wait: Wait[Outcome], conn_id: str = "taskq_default") -> "asyncio.Task[Outcome]":
    return asyncio.ensure_future(get_watcher(conn_id).wait_for(wait, WaitLog(logging.getLogger("gate"))))


@pytest.fixture
def lines(conn: psycopg.Connection) -> Callable[[], int]:
    return lambda: len(conn.execute(LINES).fetchall())


def futures(watcher: Watcher) -> int:
    """Return the number of callers that wait."""
    return sum(map(len, watcher._waits.values()))


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of waits at each check that has ended."""
    made: list[int] = []
    check = Watcher._check

    async def counted(self: Watcher, waits: list[Wait[object]]) -> object:
        number = futures(self)
        found = await check(self, waits)
        made.append(number)
        return found

    monkeypatch.setattr(Watcher, "_check", counted)
    return made


class TestWaits:
    async def test_waits_of_all_kinds_share_one_connection(self, queue: TaskQueue, lines: Callable[[], int]) -> None:
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

    async def test_equal_waits_share_one_query_and_end_together(
        self, queue: TaskQueue, lines: Callable[[], int], checks: list[int]
    ) -> None:
        waits = [waiting(ReadyWait("work", 1 + number % 2)) for number in range(500)]
        await until(lambda: checks[-1:] == [500])
        watching = get_watcher("taskq_default")
        assert (futures(watching), len(watching._waits)) == (500, 2)
        assert lines() == 1
        queue.push("work", ["a"])
        await asyncio.gather(*waits[::2])
        assert not any(wait.done() for wait in waits[1::2])
        queue.push("work", ["b"])
        await asyncio.gather(*waits)
        assert watching._waits == {}

    async def test_a_wait_counts_under_its_condition(self, queue: TaskQueue, checks: list[int]) -> None:
        queue.push("work", ["a", "a", "a"])
        wait = waiting(ReadyWait("work", 2, "SINGULAR_BY_IDENTIFIER", poll_interval=0.05))
        assert await waiting(ReadyWait("work", 3)) == 3
        await until(lambda: len(checks) > 3)
        assert not wait.done(), "three tasks, but one turn"
        queue.push("work", ["b"])
        assert await wait == 2

    async def test_a_query_that_the_server_refuses_ends_only_its_wait(self, queue: TaskQueue) -> None:
        others = [waiting(ReadyWait("work")), waiting(StateWait("work", ("a",), frozenset({"READY"}), FAILED))]
        wrong = waiting(JunctureWait(" ", "work", (("a",),)))
        with pytest.raises(InvalidArgument, match="the name of a wait is blank"):
            await wrong
        with pytest.raises(UnknownTopic, match="nowhere"):
            await waiting(StateWait("nowhere", ("a",), SUCCEEDED, FAILED))
        queue.push("work", ["a"])
        assert await asyncio.gather(*others) == [1, {"a": "READY"}]

    async def test_two_hundred_waits_on_topics_of_their_own_share_one_connection(
        self, queue: TaskQueue, lines: Callable[[], int]
    ) -> None:
        topics = [f"topic-{number}" for number in range(200)]
        for topic in topics:
            queue.create_topic(topic)
        waits = [waiting(ReadyWait(topic)) for topic in topics]
        for opened, topic in enumerate(topics[:3], start=1):
            queue.push(topic, ["a"])
            await until(lambda: sum(wait.done() for wait in waits) == opened)  # noqa: B023
            assert lines() == 1
        with queue.conn.transaction():
            for topic in topics[3:]:
                queue.push(topic, ["a"])
        assert await asyncio.gather(*waits) == [1] * 200

    async def test_a_wait_without_queries_ends_immediately(self) -> None:
        assert await waiting(StateWait("work", (), SUCCEEDED, FAILED)) == {}

    async def test_an_old_task_ends_the_wait_before_min_tasks_are_ready(self, queue: TaskQueue) -> None:
        patient, other = waiting(ReadyWait("work", 5, max_wait=1.0)), waiting(ReadyWait("work", 5))
        began = time.monotonic()
        queue.push("work", ["a"])
        assert await patient == 1
        assert time.monotonic() - began >= 1
        assert not other.done()
        other.cancel()

    async def test_a_cancelled_wait_is_forgotten(
        self, queue: TaskQueue, lines: Callable[[], int], checks: list[int]
    ) -> None:
        one, other = waiting(ReadyWait("work")), waiting(ReadyWait("work"))
        await until(lambda: checks[-1:] == [2])
        one.cancel()
        await until(lambda: checks[-1:] == [1])
        other.cancel()
        await until(lambda: lines() == 0)
        queue.push("work", ["a"])
        assert await waiting(ReadyWait("work")) == 1  # the next wait starts the watcher again

    async def test_a_missing_schema_ends_the_wait_and_names_the_command(
        self, connect_airflow: Connect, empty_dsn: str
    ) -> None:
        connect_airflow(dsn=empty_dsn)
        with pytest.raises(SchemaMismatch, match="run taskq install"):
            await waiting(ReadyWait("work"))


@pytest.mark.promise("A gate opens when its topic is ready, in every mode")
def test_an_unknown_topic_ends_every_wait() -> None:
    state = StateWait("work", ("a",), SUCCEEDED, FAILED)
    for wait in (ReadyWait("work"), JunctureWait("gate", "work", (("a",),)), state):
        with pytest.raises(UnknownTopic, match="topic 'work' does not exist; create it with: taskq topics create work"):
            wait.outcome([Found(-1)])


@pytest.mark.parametrize(
    ("make", "refusal"),
    [
        (lambda: ReadyWait("work", 0), "invalid min_tasks 0"),
        (lambda: ReadyWait("work", 1, "SOME"), "unknown condition 'SOME'"),
        (lambda: ReadyWait("wo\0rk"), "holds a NUL or a lone surrogate"),
        (lambda: StateWait("work", ("\ud800",), SUCCEEDED, FAILED), "holds a NUL or a lone surrogate"),
        (lambda: JunctureWait("gate", "work", (("a",),), "BOTH"), "unknown junction 'BOTH'"),
    ],
)
def test_a_wait_with_invalid_arguments_is_refused_where_it_is_made(make: Callable[[], object], refusal: str) -> None:
    with pytest.raises(InvalidArgument, match=refusal):
        make()


class TestLostConnections:
    async def test_reconnects_when_the_server_process_hangs(
        self, own_server: EmbeddedPostgres, connect_airflow: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        connect_airflow(dsn=own_server.dsn)
        paused, go_on, pause = asyncio.Event(), asyncio.Event(), Watcher._sleep

        async def held(self: Watcher) -> None:
            paused.set()
            await go_on.wait()
            await pause(self)

        monkeypatch.setattr(Watcher, "_sleep", held)
        with connect(own_server.dsn, autocommit=True) as conn:
            wait = waiting(ReadyWait("work"))
            await paused.wait()  # the first check is done; it may be slow on a server that has just started
            line = get_watcher("taskq_default")._queue.connection
            assert line is not None
            limit_calls(line, CallLimit(1.0))
            ((still,),) = conn.execute(LINES).fetchall()
            os.kill(still, signal.SIGSTOP)
            try:
                TaskQueue(conn).push("work", ["a"])
                go_on.set()
                assert await wait == 1
            finally:
                os.kill(still, signal.SIGCONT)
            await until(lambda: conn.execute(LINES).fetchall() == [])

    @pytest.mark.promise("PostgreSQL restarts")
    async def test_survives_a_restart_of_the_server(
        self,
        own_server: EmbeddedPostgres,
        connect_airflow: Connect,
        checks: list[int],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        connect_airflow(dsn=own_server.dsn)
        waits = [waiting(ReadyWait("work")) for _ in range(20)]
        await until(lambda: checks != [])
        await asyncio.to_thread(own_server.stop, "immediate")
        await until(lambda: "Cannot check waits, will retry" in caplog.text)
        await asyncio.to_thread(own_server.start)
        with connect(own_server.dsn) as connection:
            TaskQueue(connection).push("work", ["a"])
        assert [await wait for wait in waits] == [1] * 20
        assert str(conninfo_to_dict(own_server.dsn)["password"]) not in caplog.text

    @pytest.mark.usefixtures("queue")
    async def test_a_session_of_an_event_trigger_that_hangs_is_replaced(self, lines: Callable[[], int]) -> None:
        line = QueueThread("taskq_default")
        await line.call(lambda queue: limit_calls(queue.conn, CallLimit(0.2)))
        with pytest.raises(CallTimeout):
            await line.call(lambda queue: queue.conn.execute("SELECT pg_sleep(600)"))
        assert await line.call(lambda queue: queue.topics()) == ["work"]
        line.close()
        await until(lambda: lines() == 0)


class TestNotifications:
    async def test_a_notification_wakes_the_waits_on_its_topic(
        self, queue: TaskQueue, connect_airflow: Connect, lines: Callable[[], int]
    ) -> None:
        connect_airflow("listening", listen=True)
        queue.create_topic("other")
        watching = get_watcher("listening")
        waits = [waiting(ReadyWait(topic, poll_interval=600), "listening") for topic in ("work", "other")]
        await until(lambda: watching._due > time.monotonic() + 100)  # the first check is over
        assert lines() == 1
        queue.push("other", ["a"])
        queue.push("work", ["a"])
        queue.notify("work")
        assert await asyncio.wait_for(waits[0], 20) == 1
        assert not waits[1].done()
        queue.notify("other")
        assert await asyncio.wait_for(waits[1], 20) == 1
        await until(lambda: lines() == 0)

    async def test_a_watcher_listens_again_after_its_connection_is_lost(
        self, queue: TaskQueue, conn: psycopg.Connection, connect_airflow: Connect
    ) -> None:
        connect_airflow("listening", listen=True)
        watching = get_watcher("listening")
        wait = waiting(ReadyWait("work", poll_interval=600), "listening")
        await until(lambda: watching._due > time.monotonic() + 100)
        lost = pids(conn)
        conn.execute(f"SELECT pg_terminate_backend(pid) FROM ({LINES}) lines")
        await until(lambda: bool(pids(conn) - lost))
        await until(lambda: watching._due > time.monotonic() + 100)
        queue.push("work", ["a"])
        queue.notify("work")
        assert await asyncio.wait_for(wait, 20) == 1


@pytest.mark.usefixtures("queue")
def test_a_watcher_that_is_cancelled_while_it_connects_leaves_no_connection_open(
    monkeypatch: pytest.MonkeyPatch, lines: Callable[[], int]
) -> None:
    requested, go_on, get_conn = threading.Event(), threading.Event(), TaskQHook.get_conn

    def delayed(hook: TaskQHook) -> psycopg.Connection:
        requested.set()
        assert go_on.wait(60)
        return get_conn(hook)

    monkeypatch.setattr(TaskQHook, "get_conn", delayed)

    async def test() -> None:
        wait = waiting(ReadyWait("work"))
        await asyncio.to_thread(requested.wait, 60)
        wait.cancel()  # then the event loop ends

    asyncio.run(test())
    go_on.set()
    asyncio.run(until(lambda: lines() == 0))


class TestUpkeep:
    async def test_a_role_that_may_only_read_can_wait_and_leaves_upkeep_to_others(
        self,
        queue: TaskQueue,
        dsn: str,
        connect_airflow: Connect,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(watcher, "_UPKEEP_INTERVAL", 0.1)
        caplog.set_level(logging.INFO)
        with logged_in(queue.conn, dsn, "reader") as reader:
            connect_airflow("reading", dsn=reader)
            wait = waiting(ReadyWait("work", poll_interval=0.05), "reading")
            await until(lambda: "Leaving upkeep to other programs" in caplog.text)
            await asyncio.sleep(0.5)  # several upkeeps
            queue.push("work", ["a"])
            assert await wait == 1
        assert caplog.text.count("upkeep") == 1

    @pytest.mark.promise("a worker is killed")
    async def test_a_waiting_gate_opens_when_the_tasks_of_a_dead_worker_come_back(
        self, queue: TaskQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The watcher expires the lease itself: no worker, drain or maintenance DAG runs."""
        monkeypatch.setattr(watcher, "_UPKEEP_INTERVAL", 0.1)
        queue.push("work", ["a"])
        dead = queue.register("dead")
        assert queue.poll("work", dead)
        queue.register("ghost")
        lapse_lease(queue.conn, "ghost")
        wait = waiting(ReadyWait("work", poll_interval=0.05))
        await until(lambda: queue.owner("ghost") is None)  # the upkeep has ended its lease
        assert not wait.done()
        lapse(queue, dead)
        assert await wait == 1
        assert queue.owner("dead") is None

    async def test_a_watcher_removes_the_tasks_that_its_queue_has_kept_long_enough(self, queue: TaskQueue) -> None:
        queue.create_topic("other", keep_succeeded=0)
        queue.push("other", [f"{number}" for number in range(1_200)])  # more than one call removes
        owner = queue.register("owner")
        queue.complete(owner, dict.fromkeys(queue.poll("other", owner, 1_200), Result.SUCCESS))
        wait = waiting(ReadyWait("work", poll_interval=600))  # it checks rarely, and carries out upkeep all the same
        await until(lambda: queue.count_tasks("other") == 0)
        wait.cancel()

    async def test_a_watcher_carries_out_upkeep_once_a_minute(self, queue: TaskQueue) -> None:
        for name in ("first", "second"):
            queue.register(name)
        lapse_lease(queue.conn, "first")
        waits = [waiting(ReadyWait("work", poll_interval=0.05)) for _ in range(20)]
        await until(lambda: queue.owner("first") is None)  # the upkeep has ended its lease
        lapse_lease(queue.conn, "second")
        make_upkeep_due(queue.conn)
        await asyncio.sleep(2)
        assert queue.owner("second") is not None
        assert get_watcher("taskq_default")._upkeep_due - asyncio.get_running_loop().time() > 50
        for wait in waits:
            wait.cancel()


def make_read_only(conn: psycopg.Connection, *, on: bool) -> None:
    """Make new sessions of the database read-only, or writable again."""
    name = sql.Identifier(conn.info.dbname)
    change = "SET default_transaction_read_only = on" if on else "RESET default_transaction_read_only"
    conn.execute(sql.SQL("ALTER DATABASE {} ").format(name) + sql.SQL(change))


def pids(conn: psycopg.Connection) -> set[int]:
    """Return the process ids of the triggerer's sessions."""
    return {row[0] for row in conn.execute(LINES).fetchall()}


@pytest.mark.own_database
@pytest.mark.promise("the server fails over, or becomes read-only")
class TestReadOnly:
    """A server that becomes read-only, as after a failover behind one address."""

    async def test_a_watcher_does_not_keep_a_session_that_is_read_only(
        self, queue: TaskQueue, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(queue_thread, "_MAX_READ_ONLY_SECONDS", 0.5)
        make_read_only(conn, on=True)
        wait = waiting(ReadyWait("work", poll_interval=0.1))
        await until(lambda: len(pids(conn)) == 1)
        first = pids(conn)
        await until(lambda: bool(pids(conn) - first))  # another session, and the wait is still open
        assert not wait.done()
        make_read_only(conn, on=False)
        await asyncio.sleep(1)
        await until(lambda: len(pids(conn)) == 1)
        queue.push("work", ["a"])
        assert await asyncio.wait_for(wait, 20) == 1

    async def test_an_event_trigger_replaces_a_session_that_is_read_only(
        self, queue: TaskQueue, conn: psycopg.Connection
    ) -> None:
        line = QueueThread("taskq_default")
        make_read_only(conn, on=True)
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            await line.call(lambda queue: queue.register("a"))
        make_read_only(conn, on=False)
        await line.call(lambda queue: queue.register("a"))
        line.close()
        assert [owner.name for owner in queue.owners()] == ["a"]
