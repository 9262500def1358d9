"""Errors of PostgreSQL that say nothing about the call: a lost connection, and what another attempt may get through."""

import psycopg

from airflow_provider_taskq.queue.deadline import CallTimeout

# The session has ended or cannot write: 08 connection exceptions, 57P01 to 57P05 shutdowns and the end of idle
# sessions, 25P03 and 25P04 transactions that the server cut off, 25006 a server that became read-only.
_LOST = ("08", "57P01", "57P02", "57P03", "57P05", "25P03", "25P04", "25006")

# 40 rollbacks (deadlock, serialization), 53 resources (disk, memory, connections), 55006 and 55P03 locks,
# 57014 cancelled (statement_timeout, pg_cancel_backend), 58000 and 58030 errors of the operating system.
_TRANSIENT = ("40", "53", "55006", "55P03", "57014", "58000", "58030")

_CUT_OFF = {"25P03", "25P04"}  # idle_in_transaction_session_timeout, transaction_timeout

_READ_ONLY = (b"in_hot_standby", b"default_transaction_read_only")


def means_lost_connection(error: BaseException) -> bool:
    """Whether an error says that its session is over, or can never write: another connection has to be opened."""
    return isinstance(error, psycopg.Error) and (error.sqlstate or "").startswith(_LOST)


def is_transient(error: BaseException) -> bool:
    """Whether the transaction was rolled back for a reason that may pass: the same one may succeed later."""
    return isinstance(error, psycopg.Error) and (error.sqlstate or "").startswith(_TRANSIENT)


def is_cut_off(error: BaseException) -> bool:
    """Whether a session was ended because its own transaction or call took too long: another one may end like it."""
    return isinstance(error, CallTimeout) or (isinstance(error, psycopg.Error) and error.sqlstate in _CUT_OFF)


def is_read_only(conn: psycopg.Connection | psycopg.AsyncConnection) -> bool:
    """Whether the server said that this session cannot write: it is a standby, or its default is read-only.

    Costs no round trip: PostgreSQL reports both settings when they change. A pooler may not pass the report on. A
    connection that is closed is not read-only.
    """
    return not conn.closed and any(conn.pgconn.parameter_status(name) == b"on" for name in _READ_ONLY)
