"""Servers that are read-only: standbys, and primaries that were fenced off."""

import threading
from datetime import timedelta

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_taskq.consumer import Consumer
from airflow_provider_taskq.queue import State, TaskQueue, TaskQueueError, connect, install
from airflow_provider_taskq.queue.errors import is_read_only
from tests.consumer.consumers import Heard, quick
from tests.faults.conftest import MakeWorker, read_only_sessions
from tests.faults.servers import ServerPair, programs_of_tests
from tests.faults.tcp_proxy import TcpProxy
from tests.queue.conftest import until

pytestmark = pytest.mark.promise("the server fails over, or becomes read-only")

SECOND = timedelta(seconds=1)


def all_succeeded(queue: TaskQueue, count: int) -> bool:
    tasks = queue.page("work")
    return len(tasks) == count and {task.state for task in tasks} == {State.SUCCEEDED}


def test_finished_work_is_committed_on_a_new_session_after_a_read_only_one(
    dsn: str, queue: TaskQueue, proxy: TcpProxy, run_worker: MakeWorker
) -> None:
    started, go_on, handled = threading.Event(), threading.Event(), []

    def handle(_: object) -> None:
        handled.append(1)
        started.set()
        go_on.wait(60)

    queue.push("work", ["a"])
    run_worker(proxy.dsn(dsn), handle, lease=SECOND * 30)
    assert started.wait(20)
    with read_only_sessions(queue, proxy, 2):
        go_on.set()
    until(lambda: all_succeeded(queue, 1))
    assert handled == [1]


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
