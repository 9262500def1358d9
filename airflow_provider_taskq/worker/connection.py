"""Connections of workers and consumers: sessions that reconnect, and time limits of calls."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any, TypeAlias

import psycopg

from airflow_provider_taskq.queue import TaskQueue, TaskQueueError, connect
from airflow_provider_taskq.queue.connection import CallLimit, connection_defaults, limit_calls, resolve_dsn
from airflow_provider_taskq.queue.errors import is_connection_lost, is_read_only

Connect: TypeAlias = Callable[[], psycopg.Connection[Any]]

HANDLER_STATEMENT_TIMEOUT = timedelta(minutes=5)
_CALL_SECONDS = 60.0  # of sessions without a lease
_LEAST_CALL_SECONDS = 5.0  # a healthy server may be busy for this long
_LEAST_HEARTBEAT_SECONDS = 1.0
_LEAST_CONNECT_SECONDS = 2  # of libpq


class Disconnected(TaskQueueError):
    """The database cannot be reached now. The last call may have taken effect or not."""


def is_refused(error: BaseException) -> bool:
    """Whether the server reported this error, so that the call changed nothing.

    Any other error leaves the outcome open: a lost connection, but also an answer that the client cannot read.
    """
    reported = error.__cause__ if isinstance(error, TaskQueueError) else error
    return not isinstance(error, Disconnected) and isinstance(reported, psycopg.Error) and reported.sqlstate is not None


class DatabaseSession:
    """A TaskQueue on an autocommit connection, which is opened when it is needed, and again after it was lost.

    `limit`: how long each call waits for an answer; a minute by default. A call without an answer counts as a lost
    connection. So does a write on a read-only server.
    """

    def __init__(self, connect: Connect, limit: CallLimit | None = None) -> None:
        self._connect = connect
        self._limit = limit or CallLimit(_CALL_SECONDS)
        self._queue: TaskQueue | None = None

    @contextmanager
    def queue(self) -> Iterator[TaskQueue]:
        """The queue, for a few calls. Disconnected if it cannot be reached, or is lost in the block."""
        if self._queue is not None and is_read_only(self._queue.conn):
            self.close()  # the address may lead to a writable server by now
        queue = self._queue or self._connected()
        try:
            yield queue
        except Exception as error:
            if not queue.conn.closed and not is_connection_lost(error):
                raise
            self.close()
            raise Disconnected(str(error).strip() or type(error).__name__) from error

    def for_handler_statements(self) -> AbstractContextManager[None]:
        """Allows the calls in the block the time limit of handler statements."""
        return self._limit.for_handler_statements()

    def close(self) -> None:
        """Closes the connection. The next call opens another."""
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.conn.close()

    def _connected(self) -> TaskQueue:
        try:
            conn = connect_limited(self._connect, self._limit)
        except Exception as error:
            raise Disconnected(str(error).strip() or type(error).__name__) from error
        self._queue = TaskQueue(conn)
        return self._queue


def connect_limited(connect: Connect, limit: CallLimit) -> psycopg.Connection[Any]:
    """Opens an autocommit connection whose calls are limited in time."""
    conn = connect()
    limit_calls(conn, limit)
    try:
        conn.autocommit = True
    except BaseException:
        conn.close()
        raise
    return conn


def lease_call_limit(
    lease: timedelta, timeout: timedelta | None = None, handler_statements: timedelta = HANDLER_STATEMENT_TIMEOUT
) -> CallLimit:
    """The time limit of calls under a lease: `timeout`, by default a third of the lease, at least 5 seconds."""
    seconds = max(_LEAST_CALL_SECONDS, lease.total_seconds() / 3) if timeout is None else timeout.total_seconds()
    return CallLimit(seconds, handler_statements.total_seconds())


def heartbeat_limit(lease: float) -> CallLimit:
    """The time limit of heartbeats: a quarter of the lease, in seconds, so that there is time for another attempt."""
    return CallLimit(max(_LEAST_HEARTBEAT_SECONDS, lease / 4), grows=False)


def connection_factory(dsn: str | Connect | None, lease: timedelta | None = None) -> Connect:
    """Returns a function that connects: the given one, or one for a DSN, or for the environment (see `queue.connect`).

    `lease`: connecting takes a third of it at most, unless the DSN sets `connect_timeout`.
    """
    if callable(dsn):
        return dsn
    found = resolve_dsn(dsn)
    return lambda: connect(found, autocommit=True, **_connect_timeout(found, lease))


def _connect_timeout(dsn: str, lease: timedelta | None) -> dict[str, int]:
    """A shorter limit for connecting than the default, if the lease is short."""
    try:
        default = connection_defaults(dsn, {}).get("connect_timeout")
    except psycopg.ProgrammingError:
        return {}  # `connect` raises a better error
    if default is None or lease is None:
        return {}
    return {"connect_timeout": min(default, max(_LEAST_CONNECT_SECONDS, int(lease.total_seconds() / 3)))}
