"""A session with the queue's database that outlives its connections."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_taskq.queue import TaskQueue, TaskQueueError, connect
from airflow_provider_taskq.queue.connection import dsn_from_environment

Connect: TypeAlias = Callable[[], psycopg.Connection[Any]]

# A peer that is gone without a word is noticed within a minute. Where the DSN says otherwise, it is followed.
_PATIENCE = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,  # for what was sent, which Linux else repeats for a quarter of an hour
}


class Disconnected(TaskQueueError):
    """The database cannot be reached now; what was last asked of it may have been done or not."""


class Session:
    """The queue through a connection in autocommit, made when it is needed and again when it was lost."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._queue: TaskQueue | None = None

    @contextmanager
    def queue(self) -> Iterator[TaskQueue]:
        """The queue, for a few calls: Disconnected where it cannot be reached, or is lost within the block."""
        queue = self._queue or self._connected()
        try:
            yield queue
        except Exception as error:
            if not queue.conn.closed:
                raise
            self.close()
            raise Disconnected(str(error).strip() or type(error).__name__) from error

    def close(self) -> None:
        """Closes the connection; the next call makes another."""
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.conn.close()

    def _connected(self) -> TaskQueue:
        """The queue through a new connection."""
        try:
            conn = self._connect()
            conn.autocommit = True
        except Exception as error:
            raise Disconnected(str(error).strip() or type(error).__name__) from error
        self._queue = TaskQueue(conn)
        return self._queue


def connects_to(dsn: str | Connect | None) -> Connect:
    """How to connect: as a function says, by a DSN, or as the environment says (see `queue.connect`)."""
    if callable(dsn):
        return dsn
    found = dsn_from_environment(dsn)
    return lambda: connect(found, autocommit=True, **_unless_said(found))


def _unless_said(dsn: str) -> dict[str, Any]:
    """The patience that a DSN says nothing about."""
    try:
        said = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        return {}  # `connect` says what is wrong with it
    return {name: value for name, value in _PATIENCE.items() if name not in said}
