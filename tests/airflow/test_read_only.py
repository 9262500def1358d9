"""The triggerer reconnects when its server becomes read-only, as after a failover behind one address."""

import asyncio

import psycopg
import pytest
from psycopg import sql

from airflow_provider_taskq.queue import TaskQueue
from airflow_provider_taskq.triggers import watcher as watching
from airflow_provider_taskq.triggers.connection import ReconnectingConnection
from airflow_provider_taskq.triggers.waits import ReadyWait
from airflow_provider_taskq.triggers.watcher import get_watcher
from tests.airflow.conftest import LINES, until

pytestmark = [
    pytest.mark.usefixtures("airflow_connection"),
    pytest.mark.own_database,
    pytest.mark.promise("the server fails over, or becomes read-only"),
]


def make_read_only(conn: psycopg.Connection, *, on: bool) -> None:
    """Make new sessions of the database read-only, or writable again."""
    name = sql.Identifier(conn.info.dbname)
    change = "SET default_transaction_read_only = on" if on else "RESET default_transaction_read_only"
    conn.execute(sql.SQL("ALTER DATABASE {} ").format(name) + sql.SQL(change))


def pids(conn: psycopg.Connection) -> set[int]:
    """Return the process ids of the triggerer's sessions."""
    return {row[0] for row in conn.execute(LINES).fetchall()}


async def test_a_watcher_does_not_keep_a_session_that_is_read_only(
    queue: TaskQueue, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_MAX_READ_ONLY_SECONDS", 0.5)
    make_read_only(conn, on=True)
    wait = asyncio.ensure_future(get_watcher("taskq_default").wait_for(ReadyWait("work", poll_interval=0.1)))
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
    queue: TaskQueue, conn: psycopg.Connection
) -> None:
    register = "SELECT fence FROM taskq.register(%s::text, '1 minute'::interval)"
    line = ReconnectingConnection("taskq_default")
    make_read_only(conn, on=True)
    with pytest.raises(psycopg.OperationalError, match="read-only"):  # as after a lost connection
        await line.fetch_all(register, ("a",))
    make_read_only(conn, on=False)
    assert await line.fetch_all(register, ("a",))
    await line.close()
    assert [owner.name for owner in queue.owners()] == ["a"]
