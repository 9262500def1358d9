"""How Spark's processes reach the queue's database without anybody seeing the password on the way."""

import os
from dataclasses import dataclass
from typing import Any, Self

import psycopg
from psycopg.conninfo import make_conninfo

from airflow_provider_taskq.queue import connect
from airflow_provider_taskq.queue.connection import DSN_FILE_VARIABLE, DSN_VARIABLE
from airflow_provider_taskq.spark.worker import settle

# They name files of the machine that resolved them, and what stands in those is part of the route already.
_LOCAL_FILES = {"passfile", "service", "servicefile"}


@dataclass(frozen=True, slots=True, repr=False)
class Route:
    """The way to the database as the driver found it, to be pickled into what executors run.

    It holds the password and is therefore never an option of a DataFrame, which plans, the Spark UI and event logs
    show: it travels inside the pickled reader or writer only, and hides what it holds from whoever prints it.
    `executors_choose` lets a TASKQ_DSN or TASKQ_DSN_FILE in an executor's own environment win.
    """

    conninfo: str
    executors_choose: bool = True

    @classmethod
    def found(cls, dsn: str | psycopg.Connection[Any] | None = None, *, executors_choose: bool = True) -> Self:
        """The route by a DSN or an open connection, else by this process's environment as `queue.connect` reads it.

        It connects, so that whatever libpq finds on this machine alone (a service, a password file, PGHOST and its
        like) is resolved before the route leaves it.
        """
        if isinstance(dsn, psycopg.Connection):
            return cls(_conninfo_of(dsn), executors_choose)
        with connect(dsn) as conn:
            return cls(_conninfo_of(conn), executors_choose)

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """Opens a connection on the driver."""
        settle()  # the driver's part of a source runs in workers of Spark as well
        return connect(self.conninfo, **options)

    def connect_executor(self) -> psycopg.Connection[Any]:
        """Opens a connection on an executor, by the executor's own environment if that names a database.

        Texts cross in UTF-8 whatever the database stores: a binary COPY has them in the encoding of the session.
        """
        settle()
        own = os.environ.get(DSN_VARIABLE) or os.environ.get(DSN_FILE_VARIABLE)
        return connect(None if own and self.executors_choose else self.conninfo, client_encoding="utf8")

    def __repr__(self) -> str:
        return "Route(...)"


def _conninfo_of(conn: psycopg.Connection[Any]) -> str:
    """Everything that is needed to connect to the same place again, from any machine that can reach it."""
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
