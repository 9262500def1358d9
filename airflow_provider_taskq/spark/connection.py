"""The connection to the queue's database that the driver passes to executors, with its password kept out of sight."""

import gc
import os
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import psycopg
from psycopg.conninfo import make_conninfo

from airflow_provider_taskq.queue import connect
from airflow_provider_taskq.queue.connection import DSN_FILE_VARIABLE, DSN_VARIABLE

# They name files of this machine. Libpq has read the files already: their contents are among the other parameters.
_LOCAL_FILES = {"passfile", "service", "servicefile"}


@dataclass(frozen=True, slots=True, repr=False)
class ConnectionInfo:
    """Connection parameters as the driver resolved them, pickled into the readers and writers that executors run.

    They include the password. Options of a DataFrame appear in plans, the Spark UI and event logs, so a
    `ConnectionInfo` is never an option, and its `repr` shows nothing.

    If `executors_may_override`, a TASKQ_DSN or TASKQ_DSN_FILE in an executor's own environment takes precedence.
    """

    conninfo: str
    executors_may_override: bool = True

    @classmethod
    def resolve(cls, dsn: str | psycopg.Connection[Any] | None = None, *, executors_may_override: bool = True) -> Self:
        """Resolves a DSN, an open connection, or (None) this process's environment as `queue.connect` reads it.

        Connects once, so that libpq resolves everything that only this machine has: a service, a password file, PGHOST.
        """
        if isinstance(dsn, psycopg.Connection):
            return cls(_conninfo_of(dsn), executors_may_override)
        with connect(dsn) as conn:
            return cls(_conninfo_of(conn), executors_may_override)

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """Opens a connection on the driver."""
        freeze_gc()  # the driver's half of a data source runs in Spark's Python workers, too
        return connect(self.conninfo, **options)

    def connect_executor(self) -> psycopg.Connection[Any]:
        """Opens a connection on an executor."""
        freeze_gc()
        own = os.environ.get(DSN_VARIABLE) or os.environ.get(DSN_FILE_VARIABLE)
        # A binary COPY sends text in the encoding of the session, whatever the database stores.
        return connect(None if own and self.executors_may_override else self.conninfo, client_encoding="utf8")

    def __repr__(self) -> str:
        return "ConnectionInfo(...)"


def _conninfo_of(conn: psycopg.Connection[Any]) -> str:
    """Returns all parameters with which another machine can open the same connection."""
    values = {
        option.keyword.decode(): option.val.decode()
        for option in conn.pgconn.info
        if option.val is not None and option.val != option.compiled
    }
    for name in _LOCAL_FILES:
        values.pop(name, None)
    if conn.info.password:
        values["password"] = conn.info.password
    values.setdefault("fallback_application_name", "taskq on spark")
    return make_conninfo("", **values)


@cache
def freeze_gc() -> None:
    """Excludes the objects of all imported modules from garbage collection, once in each Python worker of Spark.

    Spark's daemon runs a full collection after every task of a worker that it reuses. Walking all objects of pyspark,
    pyarrow, NumPy and psycopg takes 50 ms, as long as reading 20,000 tasks. Does nothing in other processes.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == "pyspark.daemon":
        gc.freeze()
