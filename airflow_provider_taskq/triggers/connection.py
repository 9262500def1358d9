"""Database connections in the triggerer: timeouts, reconnects, and the errors that a retry cannot fix."""

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, LiteralString, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from psycopg.rows import TupleRow, tuple_row

from airflow_provider_taskq import hooks
from airflow_provider_taskq.queue import TaskQueueError
from airflow_provider_taskq.queue.errors import to_queue_error, translate_errors
from airflow_provider_taskq.queue.faults import classify, is_read_only

Connection = psycopg.AsyncConnection[TupleRow]
Answer = TypeVar("Answer")
Shared = TypeVar("Shared")

_CALL_TIMEOUT = 20.0  # seconds

_abandoned: set[asyncio.Task[Any]] = set()  # keeps references: the event loop has only weak ones


def per_event_loop(create: Callable[[str], Shared]) -> Callable[[str], Shared]:
    """Return a function that returns one object for each running event loop and Airflow connection id."""
    cache: WeakKeyDictionary[AbstractEventLoop, dict[str, Shared]] = WeakKeyDictionary()

    def get(conn_id: str) -> Shared:
        shared = cache.setdefault(asyncio.get_running_loop(), {})
        if conn_id not in shared:
            shared[conn_id] = create(conn_id)
        return shared[conn_id]

    return get


async def create_async_hook(conn_id: str) -> "hooks.TaskQAsyncHook":
    """Return a hook for an event loop. It is created in a thread, because its first import takes seconds."""
    return await asyncio.to_thread(lambda: hooks.TaskQAsyncHook(taskq_conn_id=conn_id))


async def call_with_timeout(call: Coroutine[Any, Any, Answer], connection: Connection, seconds: float) -> Answer:
    """Await a call on a connection. After a TimeoutError the caller must not use the connection again."""
    # A cancelled call of psycopg continues to wait for a server that hangs. So a call that takes too long is abandoned.
    # Its connection is closed when the call ends: earlier, another connection could get the file descriptor.
    task = asyncio.create_task(call)
    _abandoned.add(task)
    task.add_done_callback(_abandoned.discard)
    done, _ = await asyncio.wait({task}, timeout=seconds)
    if not done:
        task.add_done_callback(lambda _: connection.pgconn.finish())
        task.cancel()
        raise TimeoutError(f"no answer from the database within {seconds:.0f} seconds")
    return task.result()


class ReconnectingConnection:
    """Runs SQL statements, each in a transaction of its own. Opens the connection on first use and after a loss."""

    def __init__(self, conn_id: str) -> None:
        self._conn_id = conn_id
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()

    async def fetch_all(
        self,
        statement: LiteralString,
        arguments: Sequence[Any],
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> list[TupleRow]:
        """Run a statement, and return its rows. If the connection is lost, the statement may have committed.

        Raises TimeoutError after `timeout` seconds, by default 20.
        """
        connection = await self._connected()
        try:
            return await call_with_timeout(
                _fetch_all(connection, statement, arguments), connection, timeout or _CALL_TIMEOUT
            )
        except TimeoutError:
            self._forget(connection)
            raise
        except psycopg.Error as error:
            if connection.closed or classify(error).ends_session:
                self._forget(connection)
                await connection.close()
            raise

    async def close(self) -> None:
        """Close the connection if it is open."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _connected(self) -> Connection:
        async with self._connecting:
            if self._connection is not None and is_read_only(self._connection):
                await self.close()  # after a failover the address may lead to a server that accepts writes
            if self._connection is None or self._connection.closed:
                # Read the Airflow connection again, because its password may have changed.
                hook = await create_async_hook(self._conn_id)
                self._connection = await hook.get_async_conn()
            return self._connection

    def _forget(self, connection: Connection) -> None:
        if self._connection is connection:  # a concurrent call may have opened a new one
            self._connection = None


def permanent_error(error: Exception) -> Exception | None:
    """Return the error that ends a wait; None for a transient error, such as a restart or failover of the server."""
    if isinstance(error, psycopg.Error | TaskQueueError) and not classify(error).is_temporary:
        return (to_queue_error(error) or error) if isinstance(error, psycopg.Error) else error
    return error if isinstance(error, AirflowNotFoundException) else None


async def _fetch_all(connection: Connection, statement: LiteralString, arguments: Sequence[Any]) -> list[TupleRow]:
    with translate_errors():
        async with connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(statement, arguments, prepare=False)
            return await cursor.fetchall()
