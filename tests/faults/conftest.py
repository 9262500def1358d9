"""Fixtures for the tests of faults: a proxy in front of the server, and workers that stop at the end."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_taskq.queue import State, TaskQueue, connect
from airflow_provider_taskq.worker import Worker, WorkHandler
from tests.faults.tcp_proxy import TcpProxy

MakeWorker = Callable[..., Worker]


@pytest.fixture
def dsn(own_dsn: str) -> str:
    """The DSN of a database for one test: tests here change its settings, and leave sessions that do not answer."""
    return own_dsn


@pytest.fixture
def proxy(dsn: str) -> Iterator[TcpProxy]:
    """A proxy in front of the server of the tests."""
    address = conninfo_to_dict(dsn)
    with TcpProxy(str(address["host"]), int(str(address["port"]))) as started:
        yield started


@pytest.fixture
def run_worker() -> Iterator[MakeWorker]:
    """Starts workers of the topic `work`, and stops them at the end."""
    running: list[Worker] = []

    def run(dsn: Any, handler: Callable[..., Any] | WorkHandler, **options: Any) -> Worker:
        worker = Worker(dsn, "work", handler, **{"pause": timedelta(milliseconds=50), "listen": False, **options})
        running.append(worker)
        worker.start()
        return worker

    yield run
    for worker in running:
        worker.stop(timedelta(0))


class Named:
    """Connects under an application_name that names the thread of a worker: heartbeat, expiry or work."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def __call__(self) -> psycopg.Connection[Any]:
        """Opens another connection."""
        thread = threading.current_thread().name
        names = {"taskq lease": "heartbeat", "taskq expiry": "expiry"}
        name = names.get(thread, "work" if thread.startswith("taskq ") else "other")
        return connect(self._dsn, autocommit=True, application_name=name)


@contextmanager
def read_only_sessions(queue: TaskQueue, proxy: TcpProxy, count: int) -> Iterator[None]:
    """Cuts all connections, and inside the block makes new ones read-only; ends once `count` more have come."""
    name = sql.Identifier(queue.conn.info.dbname)
    change = sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(name)
    queue.conn.execute(change)
    before = max((link.number for link in proxy.links()), default=0)
    proxy.cut()
    yield
    proxy.wait_for(after=before + count - 1)
    queue.conn.execute(sql.SQL("ALTER DATABASE {} RESET default_transaction_read_only").format(name))


def ends(queue: TaskQueue) -> dict[str, State]:
    """The state of each task, by its identifier."""
    return {task.identifier: task.state for task in queue.page("work")}
