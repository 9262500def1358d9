"""Connections to the queue's database, for programs that bring none of their own."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

from airflow_provider_taskq.queue.errors import TaskQueueError, one_line

DSN_VARIABLE = "TASKQ_DSN"
DSN_FILE_VARIABLE = "TASKQ_DSN_FILE"

# A peer that vanished is noticed within a minute.
_TCP_DEFAULTS: Mapping[str, int] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,  # milliseconds; Linux otherwise repeats unacknowledged data for a quarter of an hour
}


def connect(dsn: str | None = None, **options: Any) -> psycopg.Connection:
    """Opens a connection: by `dsn`, or as the environment says.

    That is TASKQ_DSN, else the file that TASKQ_DSN_FILE names, else libpq's own variables (PGHOST, PGSERVICE,
    ...). `options` are those of `psycopg.connect`. Statements are not prepared, so that a transaction pooler
    may stand between. Timeouts of TCP, and with several hosts `target_session_attrs=read-write`, are set unless
    the DSN or the environment sets them. TaskQueueError in one sentence, without the password, where no server
    can be reached.
    """
    found = dsn_from_environment(dsn)
    try:
        if "@" in str(conninfo_to_dict(found).get("host")):
            raise TaskQueueError("the DSN of the queue's database is not well formed: write @ in its password as %40")
        return psycopg.connect(found, **{"prepare_threshold": None, **defaults_for(found, options), **options})
    except psycopg.OperationalError as error:
        raise TaskQueueError(f"cannot connect to the queue's database: {one_line(error)}") from None
    except psycopg.ProgrammingError as error:
        raise TaskQueueError(f"the DSN of the queue's database is not well formed: {_hidden(error)}") from None


def defaults_for(dsn: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of libpq that TaskQ sets if neither a DSN nor `options` nor libpq's environment sets them.

    These are a limit for connecting and TCP's keepalives and user timeout. If several hosts are named, also
    `target_session_attrs=read-write`: a queue cannot work on a standby.
    """
    environment = {
        option.keyword.decode(): option.val.decode()
        for option in Conninfo.get_defaults()
        if option.val is not None and option.val != option.compiled
    }
    given = {**environment, **conninfo_to_dict(dsn), **options}
    several = any("," in str(given.get(name) or "") for name in ("host", "hostaddr"))
    defaults = {**_TCP_DEFAULTS, **({"target_session_attrs": "read-write"} if several else {})}
    return {name: value for name, value in defaults.items() if name not in given}


def dsn_from_environment(dsn: str | None = None) -> str:
    """The connection string to use; empty where libpq's own environment says it all."""
    if dsn is not None:
        return dsn
    if from_variable := os.environ.get(DSN_VARIABLE):
        return from_variable
    if file := os.environ.get(DSN_FILE_VARIABLE):
        return _dsn_in_file(Path(file))
    if not any(name in os.environ for name in ("PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE")):
        raise TaskQueueError(
            f"no database is named: set {DSN_VARIABLE} (postgresql://user@host/database),"
            f" {DSN_FILE_VARIABLE}, or PGHOST"
        )
    return ""


def _dsn_in_file(file: Path) -> str:
    """The connection string that stands in a file, such as a mounted secret."""
    try:
        found = file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise TaskQueueError(f"cannot read the file that {DSN_FILE_VARIABLE} names: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TaskQueueError(f"the file that {DSN_FILE_VARIABLE} names holds no text") from None
    if not found:
        raise TaskQueueError(f"the file that {DSN_FILE_VARIABLE} names is empty")
    return found


def _hidden(error: psycopg.Error) -> str:
    """A parse error without the text that was parsed, which libpq quotes and which may hold the password."""
    return one_line(error).split('"')[0].strip(" :")
