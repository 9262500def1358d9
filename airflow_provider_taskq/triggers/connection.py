"""Database connections in the triggerer: timeouts, reconnects, and the errors that a retry cannot fix."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import psycopg
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from psycopg.rows import TupleRow

from airflow_provider_taskq import hooks
from airflow_provider_taskq.queue import TaskQueueError
from airflow_provider_taskq.queue.errors import to_queue_error
from airflow_provider_taskq.queue.faults import classify

Connection = psycopg.AsyncConnection[TupleRow]
Answer = TypeVar("Answer")
Shared = TypeVar("Shared")

_abandoned: set[asyncio.Task[Any]] = set()  # keeps references: the event loop has only weak ones


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


def permanent_error(error: Exception) -> Exception | None:
    """Return the error that ends a wait; None for a transient error, such as a restart or failover of the server."""
    if isinstance(error, psycopg.Error | TaskQueueError) and not classify(error).is_temporary:
        return (to_queue_error(error) or error) if isinstance(error, psycopg.Error) else error
    return error if isinstance(error, AirflowNotFoundException) else None
