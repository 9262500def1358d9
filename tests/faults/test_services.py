"""Services whose connections are cut, fall silent, or lead to a server that is read-only: they go on by others."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import partial

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_taskq.consumer import Consumer
from airflow_provider_taskq.queue import RecurringTask, Schedule, State, TaskQueue, TaskQueueError, connect, install
from airflow_provider_taskq.queue.connection import CallLimit
from airflow_provider_taskq.queue.faults import is_read_only
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.lease import DrainLease
from airflow_provider_taskq.worker import Timeouts, Worker
from airflow_provider_taskq.worker.scheduler import Scheduler
from tests.consumer.consumers import Heard, heard_all, quick
from tests.faults.conftest import MakeWorker, read_only_sessions
from tests.faults.servers import ServerPair, programs_of_tests
from tests.faults.tcp_proxy import TcpProxy
from tests.queue.conftest import until
from tests.worker.conftest import Gate

pytestmark = [
    pytest.mark.promise("A worker continues after errors of polls, handlers and connections"),
    pytest.mark.promise("a connection never answers"),
    pytest.mark.promise("the server fails over, or becomes read-only"),
]

SECOND = timedelta(seconds=1)
GoesOn = Callable[[], None]  # gives a service new work, and waits until it is done


def handled(queue: TaskQueue) -> None:
    """Waits until new tasks are handled."""
    queue.push("work", [f"task {number}" for number in range(20)])
    until(lambda: {task.state for task in queue.page("work")} == {State.SUCCEEDED})


@contextmanager
def worker(dsn: str, queue: TaskQueue) -> Iterator[GoesOn]:
    short = SECOND / 20
    timeouts = Timeouts(call=SECOND)
    started = Worker(dsn, "work", lambda _: None, workers=2, pause=short, lease=SECOND * 6, timeouts=timeouts)
    started.start()
    yield partial(handled, queue)
    started.stop(timedelta(0))


@contextmanager
def consumer(dsn: str, queue: TaskQueue) -> Iterator[GoesOn]:
    heard = heard_all()
    with Consumer(dsn, heard.group, "work", quick(lease=SECOND * 3, timeouts=Timeouts(call=SECOND))) as started:

        def reads_and_renews() -> None:
            [pushed] = queue.push("work", ["a"])
            until(lambda: pushed in heard.events)
            until(
                lambda: all(
                    (each.lease_until or queue.now()) > queue.now() + SECOND for each in queue.partition_states()
                )
            )
            assert started.errors == {}

        yield reads_and_renews


@contextmanager
def scheduler(dsn: str, queue: TaskQueue) -> Iterator[GoesOn]:
    ticker = Scheduler(dsn)
    ticker._session._limit = CallLimit(1)
    ticker.add("work", "each second", RecurringTask(Schedule.every(1), ahead=1))

    def installs() -> None:
        last = max((task.sequence for task in queue.page("work", size=1000)), default=0)
        until(lambda: queue.page("work", size=1000)[-1:] and queue.page("work", size=1000)[-1].sequence > last)

    with ticker:
        yield installs


@contextmanager
def lease_of_a_drain(dsn: str, queue: TaskQueue) -> Iterator[GoesOn]:
    owner = queue.register("drain", SECOND * 6)
    with DrainLease(owner, ConnectionInfo.resolve(dsn), lambda: None) as keeper:

        def is_kept() -> None:
            [before] = queue.owners()
            until(lambda: queue.owners()[0].lease_until > before.lease_until)
            assert keeper.lost is None

        yield is_kept


def cut(_: TaskQueue, proxy: TcpProxy) -> None:
    """All connections end."""
    proxy.cut()


def freeze(_: TaskQueue, proxy: TcpProxy) -> None:
    """All connections accept bytes and never answer."""
    for link in proxy.links():
        link.freeze()


def refuse_writes(queue: TaskQueue, proxy: TcpProxy) -> None:
    """All connections end, and the next one leads to a server that is read-only."""
    with read_only_sessions(queue, proxy, 1):
        pass


@pytest.mark.parametrize("fault", [cut, freeze, refuse_writes])
@pytest.mark.parametrize("service", [worker, consumer, scheduler, lease_of_a_drain])
def test_a_service_goes_on_after_all_of_its_connections_have_failed(
    dsn: str,
    queue: TaskQueue,
    proxy: TcpProxy,
    service: Callable[[str, TaskQueue], AbstractContextManager[GoesOn]],
    fault: Callable[[TaskQueue, TcpProxy], None],
) -> None:
    with service(proxy.dsn(dsn), queue) as goes_on:
        goes_on()
        fault(queue, proxy)
        goes_on()


# Servers that are read-only: standbys, and primaries that were fenced off


def all_succeeded(queue: TaskQueue, count: int) -> bool:
    tasks = queue.page("work")
    return len(tasks) == count and {task.state for task in tasks} == {State.SUCCEEDED}


def test_finished_work_is_committed_on_a_new_session_after_a_read_only_one(
    dsn: str, queue: TaskQueue, proxy: TcpProxy, run_worker: MakeWorker
) -> None:
    gate = Gate()
    queue.push("work", ["a"])
    run_worker(proxy.dsn(dsn), gate, lease=SECOND * 30)
    assert gate.began.wait(120)
    with read_only_sessions(queue, proxy, 2):
        gate.open.set()
    until(lambda: all_succeeded(queue, 1))
    assert gate.started == ["a"]


def test_a_connection_knows_without_a_call_that_its_server_is_read_only(dsn: str, conn: psycopg.Connection) -> None:
    assert not is_read_only(conn)
    with connect(dsn, autocommit=True, options="-c default_transaction_read_only=on") as reading:
        assert is_read_only(reading)
        reading.execute("SET default_transaction_read_only = off")
        assert not is_read_only(reading)
        reading.execute("SET default_transaction_read_only = on")
        assert is_read_only(reading)
    assert not is_read_only(reading)


def parameters(conn: psycopg.Connection) -> dict[str, str]:
    """The parameters with which a connection was opened."""
    return {option.keyword.decode(): option.val.decode() for option in conn.pgconn.info if option.val is not None}


def test_of_several_hosts_one_that_can_write_is_used_unless_the_dsn_says_otherwise(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = conninfo_to_dict(dsn)
    host, port = address["host"], address["port"]
    several = make_conninfo(dsn, host=f"{host},{host}", port=f"{port},{port}")
    with connect(dsn) as conn:
        assert parameters(conn)["target_session_attrs"] == "any"
    with connect(several) as conn:
        assert parameters(conn)["target_session_attrs"] == "read-write"
    with connect(several, target_session_attrs="any") as conn:
        assert parameters(conn)["target_session_attrs"] == "any"
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "primary")
    with connect(several) as conn:
        assert parameters(conn)["target_session_attrs"] == "primary"


def test_a_connection_of_the_queue_notices_a_server_that_vanishes(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(dsn) as conn:
        given = parameters(conn)
        assert (given["connect_timeout"], given["keepalives_idle"], given["tcp_user_timeout"]) == ("10", "30", "60000")
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "7")
    with connect(make_conninfo(dsn, tcp_user_timeout=5000), keepalives_idle=3) as conn:
        given = parameters(conn)
        assert (given["connect_timeout"], given["keepalives_idle"], given["tcp_user_timeout"]) == ("7", "3", "5000")


@pytest.mark.faults
def test_workers_and_consumers_follow_a_failover_behind_one_address(run_worker: MakeWorker) -> None:
    with (
        ServerPair(programs_of_tests()) as servers,
        TcpProxy("127.0.0.1", servers.primary.port) as proxy,
        connect(servers.primary.dsn, autocommit=True) as conn,
    ):
        install(conn)
        before = TaskQueue(conn)
        servers.catch_up()
        with connect(servers.standby.dsn) as reading:
            assert is_read_only(reading)
        with pytest.raises(TaskQueueError, match="read-only"):  # passes by the standby
            connect(make_conninfo(servers.standby.dsn, host="127.0.0.1,127.0.0.1"))
        before.create_topic("work")
        before.push("work", ["a"])
        heard = Heard()
        heard.group.on()(heard.hear)
        dsn = proxy.dsn(servers.primary.dsn)
        worker = run_worker(dsn, lambda _: None, lease=SECOND * 6, listen=True)
        with Consumer(dsn, heard.group, "work", quick(lease=SECOND * 3)):
            until(lambda: all_succeeded(before, 1))
            heard.wait(1)
            servers.fail_over()
            proxy.repoint("127.0.0.1", servers.standby.port)
            with connect(servers.standby.dsn, autocommit=True) as promoted:
                after = TaskQueue(promoted)
                until(lambda: not promoted.execute("SELECT pg_is_in_recovery()").fetchone()[0])  # type: ignore[index]
                after.push("work", ["b"])
                until(lambda: all_succeeded(after, 2))
                until(lambda: "b" in heard.identifiers)
        worker.stop()
        assert all_succeeded(before, 1)  # the old primary took nothing
