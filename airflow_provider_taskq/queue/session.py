"""Sessions that reconnect, and the time limits of their calls."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

import psycopg

from airflow_provider_taskq.queue.addresses import connection_defaults, resolve_dsn
from airflow_provider_taskq.queue.arguments import Duration
from airflow_provider_taskq.queue.client import TaskQueue
from airflow_provider_taskq.queue.connection import CallLimit, connect, limit_calls
from airflow_provider_taskq.queue.errors import ConnectionFailed, first_line
from airflow_provider_taskq.queue.faults import classify, is_read_only

Connect: TypeAlias = Callable[[], psycopg.Connection[Any]]

_CALL_SECONDS = 60.0  # limit of sessions without a lease
_LEAST_CALL_SECONDS = 5.0  # a healthy server may be busy for this long
_LEAST_HEARTBEAT_SECONDS = 1.0
_LEAST_CONNECT_SECONDS = 2  # libpq rounds a shorter connect_timeout up


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """How long a worker or consumer waits for an answer of the database before it opens another connection.

    :param call: for its own calls; by default a third of the lease, at least 5 seconds.
    :param handler_statement: for the statements of commit hooks and transactional handlers.
    """

    call: Duration[timedelta | None] = Duration(None)
    handler_statement: Duration[timedelta] = Duration("5m")

    def call_limit(self, lease: timedelta) -> CallLimit:
        """Return the limit of calls under a lease of this length."""
        default = max(_LEAST_CALL_SECONDS, lease.total_seconds() / 3)
        seconds = default if self.call is None else self.call.total_seconds()
        return CallLimit(seconds, self.handler_statement.total_seconds())


DEFAULT_TIMEOUTS = Timeouts()


class Disconnected(ConnectionFailed):
    """The database cannot be reached now. It is unknown whether the last call took effect."""


class DatabaseSession:
    """A TaskQueue on an autocommit connection. Connects at the first call, and again after a lost connection.

    A call without an answer counts as a lost connection. So does a write on a read-only server.

    :param limit: how long each call waits for an answer; a minute by default.
    :param read_only_seconds: how long a connection is kept that was read-only from the start.
    :param listens: the connection listens, and so its end is not hidden: the next call raises an error.
    """

    def __init__(
        self,
        connect: Connect,
        limit: CallLimit | None = None,
        *,
        read_only_seconds: float = 0.0,
        listens: bool = False,
    ) -> None:
        self._connect = connect
        self._limit = limit or CallLimit(_CALL_SECONDS)
        self._queue: TaskQueue | None = None
        self._read_only_seconds, self._listens = read_only_seconds, listens
        self._keep_until = 0.0  # by time.monotonic(), if it is read-only

    @property
    def connection(self) -> psycopg.Connection[Any] | None:
        """The connection, if one is open."""
        return None if self._queue is None or self._queue.conn.closed else self._queue.conn

    @contextmanager
    def queue(self) -> Iterator[TaskQueue]:
        """Yield the queue, for a few calls.

        Raises Disconnected if the connection fails, before the block or in it.
        """
        if self._queue is not None and self._is_useless(self._queue.conn):
            self.close()
        queue = self._queue
        try:
            if queue is None:
                self._queue = queue = TaskQueue(connect_limited(self._connect, self._limit))
                self._keep_until = time.monotonic() + self._read_only_seconds if is_read_only(queue.conn) else 0.0
            yield queue
        except Exception as error:
            if queue is not None and not queue.conn.closed and not classify(error).ends_session:
                raise
            self.close()
            raise Disconnected(first_line(error)) from error

    def close(self) -> None:
        """Close the connection. The next call opens another."""
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.conn.close()

    def _is_useless(self, conn: psycopg.Connection[Any]) -> bool:
        """Return whether the server has ended the session, or the address may lead to a writable server by now."""
        if is_read_only(conn) and time.monotonic() >= self._keep_until:
            return True
        return conn.closed if self._listens else _has_ended(conn)


def _has_ended(conn: psycopg.Connection[Any]) -> bool:
    """Return whether the server has ended a session between two calls, as by `idle_session_timeout`. No round trip."""
    try:
        for _ in range(2):  # first the message that says why, then the end
            conn.pgconn.consume_input()
    except psycopg.OperationalError:
        return True
    return conn.closed


def connect_limited(connect: Connect, limit: CallLimit) -> psycopg.Connection[Any]:
    """Open an autocommit connection whose calls have a time limit."""
    conn = connect()
    limit_calls(conn, limit)
    try:
        conn.autocommit = True
        conn.prepare_threshold = None  # `handler_statements` would discard what psycopg has prepared
    except BaseException:
        conn.close()
        raise
    return conn


def heartbeat_limit(lease: float) -> CallLimit:
    """Return the limit of a heartbeat: a quarter of the lease (in seconds), which leaves time for another attempt."""
    return CallLimit(max(_LEAST_HEARTBEAT_SECONDS, lease / 4), grows=False)


def connection_factory(dsn: str | Connect | None, lease: timedelta | None = None) -> Connect:
    """Return a function that opens connections: `dsn` itself if it is a function, else one for this DSN.

    None stands for the DSN of the environment.

    :param lease: an attempt to connect takes a third of the lease at most, unless the DSN sets `connect_timeout`.
    """
    return dsn if callable(dsn) else _ConnectionFactory(resolve_dsn(dsn), lease)


class _ConnectionFactory:
    """Opens connections for a DSN. No variable of its frames is the DSN, because programs may log these variables."""

    def __init__(self, dsn: str, lease: timedelta | None) -> None:
        self._dsn = dsn
        self._lease = lease

    def __call__(self) -> psycopg.Connection[Any]:
        options: dict[str, int] = {}
        with suppress(psycopg.ProgrammingError, UnicodeError):  # of an invalid DSN: connect() raises a better error
            default = connection_defaults(self._dsn, {}).get("connect_timeout")
            if default is not None and self._lease is not None:
                third = int(self._lease.total_seconds() / 3)
                options["connect_timeout"] = min(default, max(_LEAST_CONNECT_SECONDS, third))
        return connect(self._dsn, autocommit=True, **options)
