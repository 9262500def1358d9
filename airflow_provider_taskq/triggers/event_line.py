"""One database connection of the triggerer, made anew when it is lost; nothing on it blocks the event loop."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
from psycopg.rows import TupleRow, tuple_row

from airflow_provider_taskq.queue.errors import is_connection_lost, is_read_only, translate_errors

if TYPE_CHECKING:
    from airflow_provider_taskq.hooks.taskq import TaskQAsyncHook

_PATIENCE = 20.0  # seconds after which a server that neither answers nor refuses counts as lost

Connection = psycopg.AsyncConnection[TupleRow]


class Line:
    """Calls functions of the queue, each a transaction of its own, on a connection that begins with the first call."""

    def __init__(self, conn_id: str) -> None:
        self._conn_id = conn_id
        self._connection: Connection | None = None
        self._opening = asyncio.Lock()
        self._left_behind: set[asyncio.Task[Any]] = set()

    async def rows(self, call: LiteralString, arguments: Sequence[Any], patience: float = _PATIENCE) -> list[TupleRow]:
        """The rows of one call. Where the connection is lost meanwhile, nobody knows whether the call was carried out.

        psycopg, when cancelled, goes on waiting for a server that stands still. So a call is never cancelled: one that
        takes too long is left behind (TimeoutError), and its connection closed when it ends, not before: its number
        could be given to the next one meanwhile.
        """
        connection = await self._connected()
        asking = asyncio.create_task(_fetched(connection, call, arguments))
        self._left_behind.add(asking)
        asking.add_done_callback(self._left_behind.discard)
        done, _ = await asyncio.wait({asking}, timeout=patience)
        if not done:
            self._forget(connection)
            asking.add_done_callback(lambda _: connection.pgconn.finish())
            asking.cancel()
            raise TimeoutError(f"no answer from the database within {patience:.0f} seconds")
        try:
            return asking.result()
        except (psycopg.OperationalError, psycopg.InterfaceError):
            self._forget(connection)
            await connection.close()
            raise
        except psycopg.Error as error:
            if not is_connection_lost(error):
                raise
            self._forget(connection)
            await connection.close()
            raise psycopg.OperationalError(str(error)) from error

    async def close(self) -> None:
        """Closes the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _connected(self) -> Connection:
        """The connection, or a new one; the Airflow connection is read anew too, as its password may have changed."""
        async with self._opening:
            if self._connection is not None and is_read_only(self._connection):
                await self.close()  # the address may lead to a server that can write by now
            if self._connection is None or self._connection.closed:
                hook = await asyncio.to_thread(_hook, self._conn_id)
                self._connection = await hook.get_async_conn()
            return self._connection

    def _forget(self, connection: Connection) -> None:
        """Makes the next call open a new connection, unless another one has done so already."""
        if self._connection is connection:
            self._connection = None


async def _fetched(connection: Connection, call: LiteralString, arguments: Sequence[Any]) -> list[TupleRow]:
    """The rows of one call, or the queue's own error."""
    with translate_errors():
        async with connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(call, arguments)
            return await cursor.fetchall()


def _hook(conn_id: str) -> "TaskQAsyncHook":
    """The hook; called in a thread, as the first import of what it builds on takes seconds."""
    from airflow_provider_taskq.hooks.taskq import TaskQAsyncHook

    return TaskQAsyncHook(taskq_conn_id=conn_id)
