"""The settings of a session that the client relies on.

A role, a database or a program may choose other values. The server reports these settings when they change, so a look
at them costs no round trip.
"""

from functools import lru_cache
from typing import Any, TypeVar

import psycopg

from airflow_provider_taskq.queue.errors import TaskQueueError

Row = TypeVar("Row")

_NEEDED = {
    b"IntervalStyle": "postgres",  # psycopg reads intervals and timestamps in these styles only
    b"DateStyle": "ISO",
    b"standard_conforming_strings": "on",  # the functions of the schema contain backslashes
    b"client_encoding": "UTF8",
}
_BYTES = "SQL_ASCII"  # an encoding without characters, for which psycopg returns bytes


def other_settings(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> dict[str, str]:
    """Return the needed values of the settings that have values with which the client does not work."""
    return _others(tuple(map(conn.pgconn.parameter_status, _NEEDED)))


@lru_cache(64)  # each call of the queue asks
def _others(values: tuple[bytes | None, ...]) -> dict[str, str]:
    pairs = zip(_NEEDED.items(), values, strict=True)
    return {name.decode(): needed for (name, needed), value in pairs if _differs(name, needed, value)}


def _differs(name: bytes, needed: str, found: bytes | None) -> bool:
    value = (found or b"").decode()  # a pooler may not report all settings
    if name == b"client_encoding":
        return value == _BYTES
    return value != "" and not value.startswith(needed)


def set_statement(settings: dict[str, str]) -> bytes:
    """Return the statement that gives settings these values."""
    return "; ".join(f"SET {name} TO '{value}'" for name, value in settings.items()).encode()


def set_needed(conn: psycopg.Connection[Row]) -> psycopg.Connection[Row]:
    """Give the settings of a new session the needed values, which no rollback of its transactions undoes."""
    if settings := other_settings(conn):
        before = conn.autocommit
        conn.autocommit = True
        conn.execute(set_statement(settings))
        conn.autocommit = before
    return conn


def require_settings(conn: psycopg.Connection[Any]) -> None:
    """Raise TaskQueueError if the client does not work with the settings of the session."""
    for name, needed in other_settings(conn).items():
        value = (conn.pgconn.parameter_status(name.encode()) or b"").decode()
        raise TaskQueueError(
            f"the session has {name} = {value}, with which TaskQueue does not work: run SET {name} TO '{needed}'"
            " in it, or open it with airflow_provider_taskq.queue.connect, which does so"
        )
