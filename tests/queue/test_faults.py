"""The table of faults, with errors that a server or psycopg has raised."""

from collections.abc import Callable

import psycopg
import pytest

from airflow_provider_taskq.queue import TaskQueue, connect
from airflow_provider_taskq.queue.connection import CallLimit, limit_calls
from airflow_provider_taskq.queue.faults import Fault, classify

pytestmark = pytest.mark.promise("A call that raises an error has changed nothing")


def run(statement: str) -> Callable[[TaskQueue], object]:
    """Runs a statement of a program."""
    return lambda queue: queue.conn.execute(statement.encode())


def raise_code(code: str) -> Callable[[TaskQueue], object]:
    """Lets the server raise an error with this SQLSTATE."""
    return run(f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{code}'; END $$")


def raise_own(message: str) -> Callable[[TaskQueue], object]:
    """Raises psycopg's own InternalError, as for a server that sends an answer and the end of the session at once."""

    def call(_: TaskQueue) -> None:
        raise psycopg.InternalError(message)

    return call


def end_session(queue: TaskQueue) -> None:
    """Runs a statement whose session an administrator ends."""
    queue.conn.execute("SELECT pg_terminate_backend(pg_backend_pid())")


def use_closed(queue: TaskQueue) -> None:
    """Uses a connection that is closed."""
    queue.conn.close()
    queue.push("work", ["a"])


def wait_for_no_answer(queue: TaskQueue) -> None:
    """Waits for longer than the time limit of a call."""
    limit_calls(queue.conn, CallLimit(0.1, grows=False))
    queue.conn.execute("SELECT pg_sleep(60)")


FAULTS: dict[str, tuple[Callable[[TaskQueue], object], Fault]] = {
    "invalid value": (run("SELECT 1 / 0"), Fault.INVALID),
    "constraint": (run("CREATE TEMP TABLE t (n int NOT NULL); INSERT INTO t VALUES (NULL)"), Fault.INVALID),
    "invalid task": (lambda queue: queue.push("work", ["a" * 501]), Fault.INVALID),
    "unknown topic": (lambda queue: queue.push("missing", ["a"]), Fault.INVALID),
    "not held": (
        lambda queue: queue.complete(queue.register("o"), {queue.push("work", ["a"])[0]: "SUCCESS"}),
        Fault.INVALID,
    ),
    "trigger of a user": (run("DO $$ BEGIN RAISE EXCEPTION 'no'; END $$"), Fault.INVALID),
    "failed transaction": (raise_code("25P02"), Fault.INVALID),
    "privilege": (raise_code("42501"), Fault.REFUSED),
    "missing function": (run("SELECT taskq.missing()"), Fault.REFUSED),
    "missing schema": (run("SELECT missing.f()"), Fault.REFUSED),
    "lone surrogate": (lambda queue: queue.push("\ud800", ["a"]), Fault.BUG),
    "value that psycopg cannot send": (lambda queue: queue.conn.execute("SELECT %s", ["\0"]), Fault.BUG),
    "error of Python": (lambda _: int("x"), Fault.BUG),
    "statement_timeout": (run("SET statement_timeout = 10; SELECT pg_sleep(60)"), Fault.RETRY),
    "deadlock": (raise_code("40P01"), Fault.RETRY),
    "lock_timeout": (raise_code("55P03"), Fault.RETRY),
    "full queue of notifications": (raise_code("54000"), Fault.RETRY),
    "internal error": (raise_code("XX000"), Fault.RETRY),
    "unknown code": (raise_code("ZZ123"), Fault.RETRY),
    "full disk": (raise_code("53100"), Fault.SHORTAGE),
    "error of the operating system": (raise_code("58030"), Fault.SHORTAGE),
    "end of the session": (end_session, Fault.RECONNECT),
    "answer with the end of the session": (raise_own("received 2 results from command 'COMMIT'"), Fault.RECONNECT),
    "closed connection": (use_closed, Fault.RECONNECT),
    "no server": (lambda _: connect("host=127.0.0.1 port=1 connect_timeout=5"), Fault.RECONNECT),
    "read-only server": (raise_code("25006"), Fault.RECONNECT),
    "transaction that took too long": (raise_code("25P04"), Fault.TIMEOUT),
    "call that took too long": (wait_for_no_answer, Fault.TIMEOUT),
}


@pytest.mark.usefixtures("queue")
@pytest.mark.parametrize("name", FAULTS)
def test_an_error_is_classified_by_its_cause_and_by_whether_it_passes(dsn: str, name: str) -> None:
    call, fault = FAULTS[name]
    with connect(dsn, autocommit=True) as conn, pytest.raises(Exception) as raised:  # noqa: PT011 -- any error
        call(TaskQueue(conn))
    assert classify(raised.value) is fault
