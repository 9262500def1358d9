"""The queue in the triggerer: calls in a thread, so that none blocks the event loop."""

import asyncio
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from weakref import WeakKeyDictionary

import psycopg
from airflow.providers.common.compat.connection import get_async_connection
from airflow.providers.common.compat.sdk import AirflowNotFoundException

from airflow_provider_taskq import hooks
from airflow_provider_taskq.queue import TaskQueue, TaskQueueError
from airflow_provider_taskq.queue.connection import CallLimit, limit_calls
from airflow_provider_taskq.queue.faults import classify
from airflow_provider_taskq.queue.session import DatabaseSession, Disconnected

Answer = TypeVar("Answer")
Shared = TypeVar("Shared")

_CALL_SECONDS = 30.0
_LIMIT = CallLimit(_CALL_SECONDS, grows=False)
_MAX_READ_ONLY_SECONDS = 30.0  # after which a connection that was read-only from the start is opened again


def per_event_loop(create: Callable[[str], Shared]) -> Callable[[str], Shared]:
    """Return a function that returns one object for each running event loop and Airflow connection id."""
    cache: WeakKeyDictionary[AbstractEventLoop, dict[str, Shared]] = WeakKeyDictionary()

    def get(conn_id: str) -> Shared:
        shared = cache.setdefault(asyncio.get_running_loop(), {})
        if conn_id not in shared:
            shared[conn_id] = create(conn_id)
        return shared[conn_id]

    return get


class QueueThread:
    """Runs calls of the queue in one thread, one after another, over one connection in autocommit mode.

    The connection opens with the first call, and again after a loss. A call that gets no answer for 30 seconds raises
    CallTimeout, and closes it.

    :param prepare: gets the hook and each new connection.
    """

    def __init__(
        self, conn_id: str, prepare: "Callable[[hooks.TaskQHook, psycopg.Connection], object] | None" = None
    ) -> None:
        self._conn_id = conn_id
        self._prepare = prepare
        self._loop: AbstractEventLoop | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="taskq")
        self._session = DatabaseSession(self._open, _LIMIT, read_only_seconds=_MAX_READ_ONLY_SECONDS, listens=True)

    @property
    def connection(self) -> psycopg.Connection | None:
        """The connection, if one is open."""
        return self._session.connection

    def call(self, function: Callable[[TaskQueue], Answer]) -> "Future[Answer]":
        """Run a function in the thread. To cancel the future does not stop a function that runs already.

        If the connection is lost, the function may have committed.
        """
        self._loop = asyncio.get_running_loop()
        return self._loop.run_in_executor(self._thread, self._run, function)

    def close(self) -> None:
        """Close the connection after the calls that were made before, without waiting for it."""
        self._thread.submit(self._session.close)

    def _run(self, function: Callable[[TaskQueue], Answer]) -> Answer:
        try:
            with self._session.queue() as queue:
                return function(queue)
        except Disconnected as lost:
            raise lost.__cause__ or lost from None  # which tells whether it is worth another try

    def _open(self) -> psycopg.Connection:
        # Each time, because its password or token may have changed. On the loop, because only there can a triggerer
        # below Airflow 3.3 read it.
        assert self._loop is not None  # noqa: S101  for the type checker: it opens in a call
        reading = get_async_connection(self._conn_id, hook=hooks.TaskQHook)
        given = asyncio.run_coroutine_threadsafe(reading, self._loop).result(_CALL_SECONDS)
        hook = hooks.TaskQHook(taskq_conn_id=self._conn_id, connection=given)
        connection = hook.get_conn()
        try:
            connection.autocommit = True
            limit_calls(connection, _LIMIT)
            if self._prepare is not None:
                self._prepare(hook, connection)
        except BaseException:
            connection.close()
            raise
        return connection


def permanent_error(error: Exception) -> Exception | None:
    """Return the error if it ends a wait; None for a transient one, such as a restart or failover of the server."""
    refused = isinstance(error, psycopg.Error | TaskQueueError) and not classify(error).is_temporary
    return error if refused or isinstance(error, AirflowNotFoundException) else None
