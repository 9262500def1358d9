"""Database sessions of the page: one connection per request, read-only for views, a transaction for actions."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from airflow.providers.common.compat.sdk import AirflowException, AirflowNotFoundException
from fastapi import HTTPException

from airflow_provider_taskq.hooks.taskq import TaskQConnectionError, TaskQHook
from airflow_provider_taskq.queue import (
    InvalidArgument,
    InvalidState,
    InvalidTask,
    SchemaMismatch,
    TaskQueue,
    TaskQueueError,
    UnknownTopic,
)

VIEW_SECONDS = 5
ACTION_SECONDS = 30
MAX_CONNECTIONS = 8  # of this process: Airflow's own pages need threads and database connections, too
CONNECT_SECONDS = 3

_log = logging.getLogger(__name__)
_free = threading.BoundedSemaphore(MAX_CONNECTIONS)
_STATUS: dict[type[TaskQueueError], int] = {
    UnknownTopic: 404,
    InvalidTask: 400,
    InvalidArgument: 400,
    InvalidState: 409,
    SchemaMismatch: 503,
}


# A connection to a server that has vanished ends within seconds, and another request can use its place.
_KEEPALIVE = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3, "tcp_user_timeout": 10_000}


class _PageHook(TaskQHook):
    """The hook with the short timeouts of a page."""

    def _create_connection(self, conn_args: dict[str, Any]) -> Any:
        return super()._create_connection(
            {"connect_timeout": CONNECT_SECONDS, "application_name": "airflow-taskq-page", **_KEEPALIVE, **conn_args}
        )


@contextmanager
def read_only(conn_id: str) -> Iterator[TaskQueue]:
    """Yield a queue in a read-only transaction with a statement timeout of VIEW_SECONDS."""
    with _connected(conn_id) as connection:
        connection.read_only = True
        _limit(connection, VIEW_SECONDS)
        yield TaskQueue(connection)
        connection.rollback()


@contextmanager
def transaction(conn_id: str, user: str) -> Iterator[TaskQueue]:
    """Yield a queue in a transaction under the user's name, and commit at the end."""
    with _connected(conn_id) as connection:
        _limit(connection, ACTION_SECONDS)
        queue = TaskQueue(connection)
        queue.set_actor(user)
        yield queue
        connection.commit()


def _limit(connection: psycopg.Connection[Any], seconds: float) -> None:
    connection.execute("SELECT set_config('statement_timeout', %s, true)", (f"{seconds * 1000:.0f}ms",))


@contextmanager
def _connected(conn_id: str) -> Iterator[psycopg.Connection[Any]]:
    """Yield a connection, and close it at the end.

    Translate errors of the connection to an HTTPException with a message for the user.
    """
    if not _free.acquire(timeout=CONNECT_SECONDS):
        raise HTTPException(503, "The page has too many requests at once; try again.")
    try:
        with _translated_errors(conn_id):
            connection = _PageHook(taskq_conn_id=conn_id).get_conn()
            try:
                yield connection
            finally:
                with suppress(psycopg.Error):
                    connection.rollback()  # close() does not wait until the server has released the locks
                connection.close()
    finally:
        _free.release()


@contextmanager
def _translated_errors(conn_id: str) -> Iterator[None]:
    """Translate errors to messages without parts of the DSN.

    Only the server's log has the host and the user.
    """
    try:
        yield
    except HTTPException:
        raise
    except TaskQConnectionError as error:
        _log.warning("TaskQ page: no connection: conn_id=%s error=%s", conn_id, error)
        raise HTTPException(
            503, f"The page cannot connect to the database of {conn_id}; the log of the API server has the reason."
        ) from None
    except TaskQueueError as error:
        status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 409)
        raise HTTPException(status, str(error)) from None
    except AirflowNotFoundException:
        raise HTTPException(503, f"[taskq] conn_ids lists {conn_id}, but Airflow has no such connection.") from None
    except psycopg.errors.QueryCanceled:
        raise HTTPException(503, "The query took too long and was canceled; narrow the filter, or try again.") from None
    except psycopg.errors.InsufficientPrivilege:
        raise HTTPException(
            503, f"The database role of {conn_id} lacks a right that taskq.grant_access grants."
        ) from None
    except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable):
        raise HTTPException(409, "Another session changed the same tasks at the same time; try again.") from None
    except (psycopg.Error, AirflowException) as error:
        _log.warning("TaskQ page: request failed: conn_id=%s error=%s", conn_id, type(error).__name__, exc_info=True)
        raise HTTPException(
            503, f"The database of {conn_id} answered with an error; the log of the API server has the details."
        ) from None
