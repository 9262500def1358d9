"""The one table of faults: what an error blames, and whether a later attempt may succeed."""

from enum import Enum

import psycopg

from airflow_provider_taskq.queue.errors import CallTimeout, ConnectionFailed, TaskQueueError


class Fault(Enum):
    """What an error means.

    The callers differ on purpose in these points:

    - A worker's commit blames the tasks for INVALID, REFUSED and BUG only. It repeats the others while its lease lasts.
    - A commit hook may use other databases: RECONNECT fails its tasks unless the queue's connection is closed. An
      interruption (RETRY, SHORTAGE, TIMEOUT) repeats the commit. All but SHORTAGE count against the hook.
    - A consumer ends after several TIMEOUTs in a row that are not of a call, because its handler is too slow.
    - A wait in the triggerer ends at INVALID alone, and all waits of the connection at REFUSED. An error that is
      neither of psycopg nor of the queue never ends a wait.
    """

    INVALID = "the values of the call break a rule"
    REFUSED = "the call lacks a privilege, a function or a schema, as all its repetitions will"
    BUG = "the program raised it, not the server: whether the call took effect is unknown"
    RETRY = "the server undid the call, for a reason that passes or is not known"
    SHORTAGE = "the server undid the call, because it lacks disk, memory or connections"
    RECONNECT = "the session has ended or cannot write: whether the call took effect is unknown"
    TIMEOUT = "the session has ended, because its own transaction or call took too long"

    @property
    def is_answer(self) -> bool:
        """Whether the server has answered: the call changed nothing."""
        return self in (Fault.INVALID, Fault.REFUSED, Fault.RETRY, Fault.SHORTAGE)

    @property
    def is_temporary(self) -> bool:
        """Whether a later attempt may succeed, perhaps over another connection."""
        return self not in (Fault.INVALID, Fault.REFUSED, Fault.BUG)

    @property
    def ends_session(self) -> bool:
        """Whether the caller has to open another connection."""
        return self in (Fault.RECONNECT, Fault.TIMEOUT)


# By SQLSTATE, or by its class, the first two characters. All others are RETRY, such as 40 (rollbacks), 54 (limits, a
# full queue of notifications), 55 (locks), 57014 (canceled), XX (internal errors): no call is known to be at fault.
_FAULTS = {
    # Statements, transactions, functions and their values (22), constraints (23), RAISE EXCEPTION (P0), the queue (TQ).
    **dict.fromkeys(["20", "21", "22", "23", "24", "25", "27", "2F", "34", "38", "39", "3B", "44"], Fault.INVALID),
    **dict.fromkeys(["P0", "TQ"], Fault.INVALID),
    **dict.fromkeys(["3F", "42"], Fault.REFUSED),  # a missing schema; a missing privilege or object, syntax
    **dict.fromkeys(["53", "58"], Fault.SHORTAGE),  # resources; errors of the operating system
    # Connections, shutdowns, the end of an idle session, a server that became read-only.
    **dict.fromkeys(["08", "57P01", "57P02", "57P03", "57P05", "25006"], Fault.RECONNECT),
    **dict.fromkeys(["25P03", "25P04"], Fault.TIMEOUT),  # idle_in_transaction_session_timeout, transaction_timeout
}

_READ_ONLY = (b"in_hot_standby", b"default_transaction_read_only")


def classify(error: BaseException) -> Fault:
    """Return what an error means. An error of the queue is judged by the error of PostgreSQL that is its cause."""
    if isinstance(error, TaskQueueError) and not isinstance(error, psycopg.Error):
        if isinstance(error, ConnectionFailed):
            return Fault.RECONNECT
        return classify(error.__cause__) if isinstance(error.__cause__, psycopg.Error) else Fault.BUG
    if isinstance(error, CallTimeout):
        return Fault.TIMEOUT
    if not isinstance(error, psycopg.Error):
        return Fault.BUG
    if (code := error.sqlstate) is None:
        # psycopg's own InternalError stands for an answer that does not fit its call, such as that of a COMMIT together
        # with the end of the session.
        lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | psycopg.InternalError)
        return Fault.RECONNECT if lost else Fault.BUG
    return _FAULTS.get(code) or _FAULTS.get(code[:2], Fault.RETRY)


def is_read_only(conn: psycopg.Connection | psycopg.AsyncConnection) -> bool:
    """Return whether the server reported that the session cannot write.

    The server is then a standby, or read-only is the session's default. The check costs no round trip: PostgreSQL
    reports both settings when they change. A pooler may not pass the report on. Return False for a closed connection.
    """
    return not conn.closed and any(conn.pgconn.parameter_status(name) == b"on" for name in _READ_ONLY)
