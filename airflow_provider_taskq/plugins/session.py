"""One connection a request: read-only and short for views, a transaction under the user's name for actions."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from airflow.providers.common.compat.sdk import AirflowException, AirflowNotFoundException

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
AT_ONCE = 8  # of all requests to this process: Airflow's own pages need threads and the database connections, too
PATIENCE_SECONDS = 3

_log = logging.getLogger(__name__)
_free = threading.BoundedSemaphore(AT_ONCE)
_STATUS: dict[type[TaskQueueError], int] = {
    UnknownTopic: 404,
    InvalidTask: 400,
    InvalidArgument: 400,
    InvalidState: 409,
    SchemaMismatch: 503,
}


class Refusal(Exception):
    """What cannot be answered, with the status and the sentence that say so."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


# A server that is gone without a word frees its place among the page's few connections within seconds.
_ALIVE = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3, "tcp_user_timeout": 10_000}


class _PageHook(TaskQHook):
    """The hook, with less patience than a task's."""

    def _create_connection(self, conn_args: dict[str, Any]) -> Any:
        return super()._create_connection(
            {"connect_timeout": PATIENCE_SECONDS, "application_name": "airflow-taskq-page", **_ALIVE, **conn_args}
        )


@contextmanager
def looking(conn_id: str) -> Iterator[TaskQueue]:
    """The queue in a transaction that can change nothing, and whose statements end after some seconds."""
    with _connected(conn_id) as connection:
        connection.read_only = True
        _limit(connection, VIEW_SECONDS)
        yield TaskQueue(connection)
        connection.rollback()


@contextmanager
def acting(conn_id: str, user: str) -> Iterator[TaskQueue]:
    """The queue in a transaction on somebody's behalf: committed at the end, unless that was undone before."""
    with _connected(conn_id) as connection:
        _limit(connection, ACTION_SECONDS)
        queue = TaskQueue(connection)
        queue.set_actor(user)
        yield queue
        connection.commit()


def _limit(connection: psycopg.Connection[Any], seconds: float) -> None:
    """Opens the transaction with a limit on each of its statements."""
    connection.execute("SELECT set_config('statement_timeout', %s, true)", (f"{seconds * 1000:.0f}ms",))


@contextmanager
def _connected(conn_id: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection of its own, closed at the end; whatever goes wrong in it as a refusal in one sentence."""
    if not _free.acquire(timeout=PATIENCE_SECONDS):
        raise Refusal(503, "The page is asked for too much at once; try again.")
    try:
        with _explained(conn_id):
            connection = _PageHook(taskq_conn_id=conn_id).get_conn()
            try:
                yield connection
            finally:
                with suppress(psycopg.Error):
                    connection.rollback()  # close() would not wait until the server lets go of what was changed
                connection.close()
    finally:
        _free.release()


@contextmanager
def _explained(conn_id: str) -> Iterator[None]:
    """Errors as sentences without what a DSN has: the host and the user are for the server's log."""
    try:
        yield
    except Refusal:
        raise
    except TaskQueueError as error:
        status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 409)
        raise Refusal(status, str(error)) from None
    except AirflowNotFoundException:
        raise Refusal(503, f"The connection {conn_id} is listed in [taskq] conn_ids, but Airflow has none.") from None
    except TaskQConnectionError as error:
        _log.warning("The TaskQ page got no connection: %s", error)
        raise Refusal(
            503, f"The database of {conn_id} can't be reached; the log of Airflow's API server says why."
        ) from None
    except psycopg.errors.QueryCanceled:
        raise Refusal(503, "That took too long and was stopped; ask for less, or try again.") from None
    except psycopg.errors.InsufficientPrivilege:
        raise Refusal(503, f"The database role of {conn_id} may not do that; see taskq.grant_access.") from None
    except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable):
        raise Refusal(409, "Somebody else changed the same at the same time; try again.") from None
    except (psycopg.Error, AirflowException) as error:
        _log.warning("The TaskQ page failed on %s: %s", conn_id, type(error).__name__, exc_info=True)
        raise Refusal(
            503, f"The database of {conn_id} did not answer as it should; the log of the API server says more."
        ) from None
