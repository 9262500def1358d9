"""TaskQueue accepts a connection of psycopg 3. The error for another object names the object to pass."""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import psycopg2  # type: ignore[import-untyped]
import pytest
import sqlalchemy
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from airflow_provider_taskq.queue import TaskQueue

pytestmark = pytest.mark.promise("An error is one sentence that names the object and the remedy")


@pytest.fixture
def engine(dsn: str) -> Iterator[sqlalchemy.Engine]:
    """SQLAlchemy's engine on the test's database."""
    given: Any = conninfo_to_dict(dsn)
    url = sqlalchemy.URL.create(
        "postgresql+psycopg", given["user"], given.get("password"), given["host"], given.get("port"), given["dbname"]
    )
    made = sqlalchemy.create_engine(url)
    yield made
    made.dispose()


ATTRIBUTES: dict[str, tuple[Callable[[sqlalchemy.Engine], Any], str]] = {
    "Connection": (lambda engine: engine.connect(), "connection.connection.driver_connection"),
    "Session": (Session, "session.connection().connection.driver_connection"),
    "scoped_session": (
        lambda engine: scoped_session(sessionmaker(engine)),
        "session.connection().connection.driver_connection",
    ),
    "PoolProxiedConnection": (lambda engine: engine.raw_connection(), "connection.driver_connection"),
}


@pytest.mark.parametrize(("opened", "attribute"), ATTRIBUTES.values(), ids=ATTRIBUTES.keys())
def test_the_attribute_that_the_error_names_for_sqlalchemy_works(
    engine: sqlalchemy.Engine, opened: Callable[[sqlalchemy.Engine], Any], attribute: str
) -> None:
    given = opened(engine)
    with pytest.raises(TypeError, match=r"needs a psycopg\.Connection") as refusal:
        TaskQueue(given)
    assert f"pass {attribute};" in str(refusal.value)
    named = eval(attribute, {"connection": given, "session": given})  # noqa: S307 -- the words of the error
    queue = TaskQueue(named)
    queue.create_topic("orders")
    queue.push("orders", ["a"])
    assert queue.count_tasks("orders") == 1
    named.rollback()
    given.close()


def test_the_error_for_an_engine_names_its_connection(engine: sqlalchemy.Engine) -> None:
    with pytest.raises(TypeError, match=r"engine\.begin\(\) as connection.*connection\.connection\.driver_connection"):
        TaskQueue(engine)  # type: ignore[arg-type]  # what is tested


def test_a_psycopg2_connection_is_refused_with_the_call_that_opens_another(dsn: str) -> None:
    old = psycopg2.connect(dsn)
    with pytest.raises(TypeError, match=r"not a psycopg2\.extensions\.connection: pass a connection of psycopg 3"):
        TaskQueue(old)
    old.close()


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        (psycopg.AsyncConnection.__new__(psycopg.AsyncConnection), "TaskQueue is synchronous"),
        ("postgresql://host/database", r"airflow_provider_taskq\.queue\.connect\(dsn\)"),
        (None, r"open one with psycopg\.connect\(\)"),
    ],
    ids=["async", "text", "none"],
)
def test_any_other_object_is_refused_with_the_call_that_opens_a_connection(given: Any, advice: str) -> None:
    with pytest.raises(TypeError, match=f"TaskQueue needs a psycopg.Connection.*{advice}"):
        TaskQueue(given)


def test_a_cursor_is_refused_with_its_connection(conn: psycopg.Connection) -> None:
    with conn.cursor() as cursor, pytest.raises(TypeError, match=r"pass cursor\.connection"):
        TaskQueue(cursor)  # type: ignore[arg-type]  # what is tested
