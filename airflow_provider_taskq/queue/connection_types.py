"""Recognizes connections of other libraries, to name in an error what to pass to TaskQueue instead."""

from typing import Any, NoReturn

import psycopg

_SQLALCHEMY_URL = "the URL of the engine has to begin with postgresql+psycopg://"
_SYNCHRONOUS = "TaskQueue is synchronous: open a connection with psycopg.connect()"

# By module and name of a class, so that no other library is imported. A class is found by its bases as well.
_ALTERNATIVES = {
    ("psycopg2", "connection"): "pass a connection of psycopg 3: psycopg.connect(connection.dsn, password=...)",
    ("psycopg", "AsyncConnection"): _SYNCHRONOUS,
    ("psycopg", "Cursor"): "pass cursor.connection",
    ("psycopg_pool", "ConnectionPool"): "pass the connection that `with pool.connection() as connection:` gives",
    ("psycopg_pool", "AsyncConnectionPool"): _SYNCHRONOUS,
    ("sqlalchemy", "Connection"): f"pass connection.connection.driver_connection; {_SQLALCHEMY_URL}",
    ("sqlalchemy", "Session"): f"pass session.connection().connection.driver_connection; {_SQLALCHEMY_URL}",
    ("sqlalchemy", "scoped_session"): f"pass session.connection().connection.driver_connection; {_SQLALCHEMY_URL}",
    ("sqlalchemy", "Engine"): (
        "open a connection with `with engine.begin() as connection:` and pass connection.connection.driver_connection;"
        f" {_SQLALCHEMY_URL}"
    ),
    ("sqlalchemy", "PoolProxiedConnection"): f"pass connection.driver_connection; {_SQLALCHEMY_URL}",
    ("sqlalchemy", "AsyncConnection"): _SYNCHRONOUS,
    ("sqlalchemy", "AsyncSession"): _SYNCHRONOUS,
    ("sqlalchemy", "AsyncEngine"): _SYNCHRONOUS,
    ("builtins", "str"): "open a connection with airflow_provider_taskq.queue.connect(dsn)",
}


def reject_connection(given: Any) -> NoReturn:
    """Raises TypeError, which names the class that was given and the object to pass instead."""
    kinds = [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(given).__mro__]
    alternative = next((_ALTERNATIVES[kind] for kind in kinds if kind in _ALTERNATIVES), None)
    name = f"{type(given).__module__}.{type(given).__qualname__}"
    raise TypeError(
        f"TaskQueue needs a psycopg.Connection (psycopg 3), not a {name}: "
        f"{alternative or 'open one with psycopg.connect()'}"
    )


def require_connection(given: Any) -> "psycopg.Connection[Any]":
    """Returns the connection; TypeError if it is not one of psycopg 3."""
    return given if isinstance(given, psycopg.Connection) else reject_connection(given)
