"""Statements of handlers in a transaction of the queue: their time limit, and the reset of the session after them."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from airflow_provider_taskq.queue.connection import QueueConnection, deferred_statements, open_cursor
from airflow_provider_taskq.queue.errors import TaskQueueError

# What DISCARD ALL does, but in a transaction, and without the plans of the queue's functions. The first statement also
# returns two settings of the transaction by which all its pushes share one lock.
_RESET = (
    "SELECT pg_catalog.current_setting('taskq.log_floor', true),"
    " pg_catalog.current_setting('taskq.announced_time', true), pg_catalog.pg_advisory_unlock_all(); "
    "RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL; CLOSE ALL; UNLISTEN *; DISCARD TEMP; DEALLOCATE ALL"
)
_KEEP = (
    "SELECT set_config('taskq.log_floor', coalesce(%s, ''), true),"
    " set_config('taskq.announced_time', coalesce(%s, ''), true)"
)
_RESET_AFTER_ROLLBACK = "SELECT pg_catalog.pg_advisory_unlock_all(); DEALLOCATE ALL"

# Returns the calls that set again what was set since the connection was opened, as by a function that connects.
# The role comes after the user, because a change of the user resets the role.
_OWN_SETTINGS = """
    SELECT string_agg(format('set_config(%%L, %%L, false)', name, setting), ', ' ORDER BY place)
    FROM (SELECT 1, 'session_authorization', session_user::text WHERE session_user <> %s
          UNION ALL SELECT 2, 'role', current_setting('role') WHERE current_setting('role') <> 'none'
          UNION ALL SELECT 3, name, setting FROM pg_settings WHERE source = 'session') AS s (place, name, setting)
"""

_resets: WeakKeyDictionary[psycopg.Connection[Any], str] = WeakKeyDictionary()


@contextmanager
def handler_statements(conn: psycopg.Connection[Any], *, savepoint: bool = False) -> Iterator[None]:
    """Run the statements of a handler in the open transaction, under their time limit, and then reset the session.

    The next handler and the queue's own calls find settings, role, temporary tables, session locks, prepared
    statements, cursors and channels as if the handler had not run. The reset is sent together with the release of the
    savepoint, or else with the next call of the queue. It needs a round trip of its own only between two handlers.

    :param savepoint: an error undoes what the handler wrote. Without a savepoint, it undoes the whole transaction.
    :raises TaskQueueError: if the handler has ignored an error that aborted its transaction.
    """
    reset = _resets.get(conn) or _make_reset(conn)
    if savepoint:
        conn.execute("SAVEPOINT taskq_handler")
    elif deferred_statements.pop(conn, None):
        _reset(conn, reset)
    limit = conn.limit if isinstance(conn, QueueConnection) else None
    try:
        with limit.for_handler_statements() if limit else nullcontext():
            yield
            _refuse_ignored_error(conn)
            if savepoint:
                _reset(conn, f"{reset}; RELEASE taskq_handler")
            else:
                deferred_statements[conn] = reset
    except BaseException:
        _undo(conn, "ROLLBACK TO taskq_handler; RELEASE taskq_handler" if savepoint else "ROLLBACK AND CHAIN")
        raise


def _make_reset(conn: psycopg.Connection[Any]) -> str:
    [(own,)] = open_cursor(conn, tuple_row).execute(_OWN_SETTINGS, (conn.info.user,)).fetchall()
    _resets[conn] = reset = f"{_RESET}; SELECT {own}" if own else _RESET
    return reset


def _refuse_ignored_error(conn: psycopg.Connection[Any]) -> None:
    if conn.info.transaction_status == TransactionStatus.INERROR:
        raise TaskQueueError("the handler ignored the error of a statement, which has aborted its transaction")


def _reset(conn: psycopg.Connection[Any], statements: str) -> None:
    cursor = open_cursor(conn, tuple_row)
    floor, time, _ = cursor.execute(statements).fetchone() or (None, None, None)
    if floor or time:
        cursor.execute(_KEEP, (floor, time))


def _undo(conn: psycopg.Connection[Any], rollback: str) -> None:
    try:
        if not conn.closed:
            conn.execute(f"{rollback}; {_RESET_AFTER_ROLLBACK}")
    except psycopg.Error:
        conn.close()  # its state is unknown
