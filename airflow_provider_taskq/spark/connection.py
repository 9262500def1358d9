"""Connection parameters that the driver passes to executors, without showing the password in plans or logs."""

import gc
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import psycopg
from psycopg.conninfo import make_conninfo

from airflow_provider_taskq.queue import connect
from airflow_provider_taskq.queue.addresses import (
    DSN_FILE_VARIABLE,
    DSN_VARIABLE,
    given_hosts,
    parameters_with_hosts,
    resolve_dsn,
)
from airflow_provider_taskq.queue.jobs import JobQueue

# These parameters name files of this machine. libpq has read the files: the other parameters have their contents.
_LOCAL_FILES = {"passfile", "service", "servicefile"}
_APPLICATION_NAME = "taskq on spark"


@dataclass(frozen=True, slots=True, repr=False)
class ConnectionInfo:
    """Connection parameters as the driver resolved them, pickled into the readers and writers that executors run.

    They include the password. Options of a DataFrame appear in plans, the Spark UI and event logs, so a
    `ConnectionInfo` is never an option, and its `repr` shows nothing.

    If `executors_may_override`, a TASKQ_DSN or TASKQ_DSN_FILE in an executor's own environment takes precedence.
    If `from_file`, the driver reads the file of TASKQ_DSN_FILE again for each connection, so that it may hold a token
    that expires.
    """

    conninfo: str
    executors_may_override: bool = True
    from_file: bool = False

    @classmethod
    def resolve(cls, dsn: str | psycopg.Connection[Any] | None = None, *, executors_may_override: bool = True) -> Self:
        """Return the parameters of a DSN or of an open connection; None: of the environment, as `queue.connect` does.

        A DSN is resolved by connecting once, because libpq may read a service, a password file or PGHOST of this
        machine. All of its hosts are kept. An open connection has only the address that it reached.
        """
        if isinstance(dsn, psycopg.Connection):
            return cls(_conninfo_of(dsn, {}), executors_may_override)
        from_file = dsn is None and _is_dsn_in_file()
        resolved = resolve_dsn(dsn)
        with connect(resolved) as conn:
            return cls(_conninfo_of(conn, given_hosts(resolved)), executors_may_override, from_file)

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """Open a connection on the driver; `options` are parameters of `queue.connect`."""
        freeze_gc()  # Spark also plans and commits in Python workers
        if self.from_file and _is_dsn_in_file():
            return connect(None, **{"fallback_application_name": _APPLICATION_NAME, **options})
        return connect(self.conninfo, **options)

    @contextmanager
    def queue(self, **options: Any) -> Iterator[JobQueue]:
        """Open a connection on the driver for calls of the queue: one transaction, unless `options` say otherwise."""
        with self.connect(**options) as conn:
            yield JobQueue(conn)

    @contextmanager
    def executor_queue(self) -> Iterator[JobQueue]:
        """Open a connection on an executor, to the database that its own environment names if that may override."""
        freeze_gc()
        own = os.environ.get(DSN_VARIABLE) or os.environ.get(DSN_FILE_VARIABLE)
        # A binary COPY sends text in the encoding of the session, and Arrow needs UTF-8.
        connected = connect if own and self.executors_may_override else self.connect
        with connected(client_encoding="utf8") as conn:
            yield JobQueue(conn)

    def __repr__(self) -> str:
        return "ConnectionInfo(...)"


def _is_dsn_in_file() -> bool:
    """Whether `queue.connect` reads the file that TASKQ_DSN_FILE names."""
    return not os.environ.get(DSN_VARIABLE) and bool(os.environ.get(DSN_FILE_VARIABLE))


def _conninfo_of(conn: psycopg.Connection[Any], hosts: Mapping[str, str]) -> str:
    """Return the parameters with which another machine can open the same connection, to one of `hosts` if given."""
    values = {
        option.keyword.decode(): option.val.decode()
        for option in conn.pgconn.info
        if option.val is not None and option.val != option.compiled
    }
    for name in _LOCAL_FILES:
        values.pop(name, None)
    if conn.info.password:
        values["password"] = conn.info.password
    values.setdefault("fallback_application_name", _APPLICATION_NAME)
    return make_conninfo("", **parameters_with_hosts(values, hosts))


@cache
def freeze_gc() -> None:
    """Exclude the objects of all imported modules from garbage collection, once in each Python worker of Spark.

    Do nothing in other processes.
    """
    # Spark's daemon runs a full collection after every task of a worker that it reuses. Walking all objects of pyspark,
    # pyarrow, NumPy and psycopg takes 50 ms, as long as reading 20,000 tasks.
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == "pyspark.daemon":
        gc.freeze()
