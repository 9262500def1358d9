"""Statements of handlers in a transaction of the queue: their time limit, and the reset of the session after them."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from airflow_provider_taskq.queue.connection import limit_of
from airflow_provider_taskq.queue.errors import TaskQueueError

# What a rollback does not undo.
_RELEASE = "DEALLOCATE ALL; SELECT pg_advisory_unlock_all()"
_RESET = f"RESET SESSION AUTHORIZATION; RESET ALL; CLOSE ALL; UNLISTEN *; DISCARD TEMP; {_RELEASE}"

# Returns the calls that set again what the session has set since it was opened, as in a function that connects.
# The role comes after the user, because a change of the user resets the role.
_SETTINGS = """
    SELECT string_agg(format('set_config(%L, %L, false)', name, setting), ', ' ORDER BY place)
    FROM (SELECT 1, 'session_authorization', session_user
          UNION ALL SELECT 2, 'role', current_setting('role')
          UNION ALL SELECT 3, name, setting FROM pg_settings WHERE source = 'session') AS s (place, name, setting)
"""

# Two settings of the transaction by which its pushes share one lock. RESET ALL resets them.
_HINTS = "SELECT current_setting('taskq.log_floor', true), current_setting('taskq.announced_time', true); "
_KEEP_HINTS = (
    "SELECT set_config('taskq.log_floor', coalesce(%s, ''), true),"
    " set_config('taskq.announced_time', coalesce(%s, ''), true)"
)

_resets: WeakKeyDictionary[psycopg.Connection[Any], str] = WeakKeyDictionary()


@contextmanager
def handler_statements(conn: psycopg.Connection[Any], *, savepoint: bool = False) -> Iterator[None]:
    """Run the statements of a handler in the open transaction, under their time limit, and then reset the session.

    The next handler, and the queue's own statements, find settings, role, temporary tables, session locks, prepared
    statements and channels as if the handler had not run. The reset needs one round trip, and none with a savepoint.

    :param savepoint: an error undoes what the handler wrote. Otherwise it undoes the whole transaction.
    :raises TaskQueueError: if the handler has ignored an error that aborted its transaction.
    """
    reset = _resets.get(conn) or _reset_of(conn)
    if savepoint:
        conn.execute("SAVEPOINT taskq_handler")
    limit = limit_of(conn)
    try:
        with limit.for_handler_statements() if limit else nullcontext():
            yield
            _reset(conn, "RELEASE taskq_handler; " * savepoint + reset)
    except BaseException:
        _undo(conn, "ROLLBACK TO taskq_handler; RELEASE taskq_handler" if savepoint else "ROLLBACK AND CHAIN")
        raise


def _reset_of(conn: psycopg.Connection[Any]) -> str:
    [(settings,)] = conn.cursor(row_factory=tuple_row).execute(_SETTINGS).fetchall()
    reset = f"{_RESET}, {settings}"
    _resets[conn] = reset
    return reset


def _reset(conn: psycopg.Connection[Any], statements: str) -> None:
    if conn.info.transaction_status == TransactionStatus.INERROR:
        raise TaskQueueError("the handler ignored the error of a statement, which has aborted its transaction")
    cursor = conn.cursor(row_factory=tuple_row)
    hints = cursor.execute((_HINTS + statements).encode()).fetchone() or ()
    if any(hints):
        cursor.execute(_KEEP_HINTS, hints)


def _undo(conn: psycopg.Connection[Any], rollback: str) -> None:
    try:
        if not conn.closed:
            conn.execute(f"{rollback}; {_RELEASE}".encode())
    except psycopg.Error:
        conn.close()  # its state is unknown
