"""Addresses of the queue's database: what names it, what libpq adds, and what other libraries write."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

from airflow_provider_taskq.queue.errors import TaskQueueError

_ADDRESS = ("host", "hostaddr", "port")
DSN_VARIABLE = "TASKQ_DSN"
DSN_FILE_VARIABLE = "TASKQ_DSN_FILE"
# Why the parameters of a connection raise a UnicodeError.
INVALID_TEXT = "it has an invalid host name, or a character that UTF-8 lacks"

# The beginning of an address of another library. It holds no password.
_SCHEME = re.compile(r"(?P<jdbc>jdbc:)?(?P<scheme>[a-z]\w*)(?P<driver>\+\w+)?:(?P<slashes>//)?", re.IGNORECASE)

# A peer that vanished is noticed within a minute.
_TCP_DEFAULTS: Mapping[str, int] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,  # milliseconds; Linux otherwise repeats unacknowledged data for a quarter of an hour
}


def other_form(dsn: str) -> str | None:
    """Return what to write instead of an address that begins as one of another library; None for all other DSNs."""
    if dsn.startswith(("postgresql://", "postgres://")) or not (found := _SCHEME.match(dsn)):
        return None
    scheme = found["scheme"]
    if scheme.lower() not in ("postgresql", "postgres"):
        known = found["jdbc"] or found["slashes"]
        return f"the queue is in PostgreSQL, and this is an address for {scheme}" if known else None
    if found["jdbc"]:
        return "this is an address for JDBC: write postgresql://user:password@host:5432/database"
    if found["driver"]:
        return f"this is an address for SQLAlchemy: write postgresql:// instead of {scheme}{found['driver']}://"
    return f"write postgresql:// instead of {scheme}:"


def connection_defaults(dsn: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the libpq parameters that TaskQ sets if neither the DSN nor `options` nor libpq's environment sets them.

    These are a limit for connecting and TCP's keepalives and user timeout. If several hosts are named, also
    `target_session_attrs=read-write`: a queue cannot work on a standby.
    """
    given = {**_environment(), **conninfo_to_dict(dsn), **options}
    several = any("," in str(given.get(name) or "") for name in ("host", "hostaddr"))
    defaults = {**_TCP_DEFAULTS, **({"target_session_attrs": "read-write"} if several else {})}
    return {name: value for name, value in defaults.items() if name not in given}


def _environment() -> dict[str, str]:
    """Return the parameters that libpq takes from its environment variables."""
    return {
        option.keyword.decode(): option.val.decode()
        for option in Conninfo.get_defaults()
        if option.val is not None and option.val != option.compiled
    }


def given_hosts(dsn: str = "", options: Mapping[str, Any] = MappingProxyType({})) -> dict[str, str]:
    """Return `host`, `hostaddr` and `port` as a DSN, `options` or libpq's environment give them, with all hosts.

    An open connection does not have them: psycopg connects to one resolved address at a time.
    """
    given = {**_environment(), **conninfo_to_dict(dsn), **options}
    return {name: str(given[name]) for name in _ADDRESS if given.get(name)}


def parameters_with_hosts(parameters: Mapping[str, str], hosts: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of an open connection with the hosts of `given_hosts` instead of the connected address.

    So another connection finds the server that is the primary by then.
    """
    if "host" not in hosts and "hostaddr" not in hosts:
        return dict(parameters)
    kept = {name: value for name, value in parameters.items() if name not in ("host", "hostaddr")}
    return {**kept, **hosts}


def resolve_dsn(dsn: str | None = None) -> str:
    """Return the connection string to use. Return an empty text if libpq's own variables name the database.

    :raises TaskQueueError: if nothing names a database, or the file of TASKQ_DSN_FILE cannot be read.
    """
    if dsn is not None:
        return dsn
    if from_variable := os.environ.get(DSN_VARIABLE):
        return from_variable
    if file := os.environ.get(DSN_FILE_VARIABLE):
        return _read_dsn(Path(file))
    if not any(name in os.environ for name in ("PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE")):
        raise TaskQueueError(
            f"no database is named: set {DSN_VARIABLE} (postgresql://user@host/database),"
            f" {DSN_FILE_VARIABLE}, or PGHOST"
        )
    return ""


def _read_dsn(file: Path) -> str:
    try:
        dsn = file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise TaskQueueError(f"cannot read the file that {DSN_FILE_VARIABLE} names: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TaskQueueError(f"the file that {DSN_FILE_VARIABLE} names is not UTF-8 text") from None
    if not dsn:
        raise TaskQueueError(f"the file that {DSN_FILE_VARIABLE} names is empty")
    return dsn
