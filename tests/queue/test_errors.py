"""Errors: each is one sentence with the remedy, and changes nothing."""

import pickle
import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import django.db  # type: ignore[import-untyped]
import psycopg
import psycopg2  # type: ignore[import-untyped]
import pytest
import sqlalchemy
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from airflow_provider_taskq.queue import (
    Deadlock,
    LeaseLost,
    NewTask,
    NotHeld,
    Owner,
    Result,
    SchemaMismatch,
    TaskQueue,
    TaskQueueError,
    UnknownTopic,
    connect,
)
from airflow_provider_taskq.queue.errors import to_queue_error, translate_errors
from airflow_provider_taskq.queue.faults import Fault, classify
from airflow_provider_taskq.queue.session import connection_factory
from airflow_provider_taskq.queue.task_input import split_into_chunks
from tests.internals import block_verbs
from tests.queue.conftest import lapse

pytestmark = pytest.mark.promise("An error is one sentence that names the object and the remedy")

SECRET = "hunter2"
VARIABLES = ("TASKQ_DSN", "TASKQ_DSN_FILE", "PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE")


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def sentence(error: BaseException) -> str:
    """The message of an error, which must be one line."""
    text = str(error)
    assert text
    assert len(text.splitlines()) == 1, text
    return text


DSNS = {
    "away": f"postgresql://me:{SECRET}@127.0.0.1:1/nowhere",
    "bad port": f"postgresql://me:{SECRET}@host:not-a-port/db",
    "slash before": f"postgresql://me:pass/{SECRET}@127.0.0.1/db",
    "slash after": f"postgresql://me:{SECRET}/word@127.0.0.1/db",
    "at sign": f"postgresql://me:pa@{SECRET}@127.0.0.1:1/db",
    "question mark": f"postgresql://me:{SECRET}?x@127.0.0.1:1/db",
    "hash": f"postgresql://me:{SECRET}#x@127.0.0.1:1/db",
    "percent": f"postgresql://me:%zz{SECRET}@127.0.0.1:1/db",
    "bracket": f"postgresql://me:[{SECRET}@127.0.0.1:1/db",
    "one slash": f"postgres:/me:{SECRET}@127.0.0.1/db",
    "blank": f"host=127.0.0.1 password=two {SECRET}",
    "open quote": f"host=127.0.0.1 password='{SECRET}",
    "misspelt": f"host=127.0.0.1 pasword={SECRET}",
    "another scheme": f"mysql://me:{SECRET}@127.0.0.1/db",
    "surrogate": f"host=127.0.0.1 port=1 password={SECRET}\ud800",
    "NUL": f"host=127.0.0.1 port=1 password={SECRET}\x00",
    "two dots": f"postgresql://me:{SECRET}@db..example/db",
    "long label": f"postgresql://me:{SECRET}@{'a' * 64}/db",
}


@pytest.mark.promise("Payloads and passwords are in no log, error, metric, argument, XCom or plan")
@pytest.mark.parametrize("dsn", DSNS.values(), ids=DSNS)
def test_a_malformed_dsn_never_shows_its_password(dsn: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither does a frame: formatters of tracebacks, such as those of rich, may print the local variables of each."""
    for call in (connection_factory(dsn), partial(connect, dsn, connect_timeout=2)):
        check_failure(call)
    assert SECRET not in "".join(capfd.readouterr())


def test_a_password_that_is_given_apart_is_in_no_frame_of_a_failed_connection() -> None:
    check_failure(partial(connect, "host=127.0.0.1 port=1", connect_timeout=2, password=SECRET))


def check_failure(call: Callable[[], object]) -> None:
    """Fails if the error of a connection, or a frame of its traceback, has the password."""
    with pytest.raises(TaskQueueError) as error:
        call()
    assert SECRET not in sentence(error.value)
    frames = [frame for frame, _ in traceback.walk_tb(error.tb) if frame.f_code.co_filename != __file__]
    assert frames
    assert [frame.f_code.co_name for frame in frames if SECRET in repr(frame.f_locals)] == []


@pytest.mark.parametrize(
    ("dsn", "words"),
    [
        ("postgresql+psycopg2://me:pw@host/db", "SQLAlchemy: write postgresql:// instead of postgresql+psycopg2://"),
        ("postgres+asyncpg://me:pw@host/db", "SQLAlchemy: write postgresql:// instead of postgres+asyncpg://"),
        ("jdbc:postgresql://host/db?user=me&password=pw", "JDBC: write postgresql://user:password@host:5432/database"),
        ("jdbc:postgresql:db", "JDBC: write postgresql://"),
        ("mysql://me:pw@host/db", "the queue is in PostgreSQL, and this is an address for mysql"),
        ("postgres:/me:pw@host/db", "write postgresql:// instead of postgres:"),
        ("POSTGRESQL://me:pw@host/db", "write postgresql:// instead of POSTGRESQL:"),
    ],
)
def test_an_address_of_another_library_is_named_with_what_to_write(dsn: str, words: str) -> None:
    with pytest.raises(TaskQueueError, match=f"malformed: .*{re.escape(words)}"):
        connect(dsn)


def test_a_dsn_with_a_nul_is_refused_and_not_cut_off_there(dsn: str) -> None:
    with pytest.raises(TaskQueueError, match="NUL"):
        connect(f"{dsn}\x00 dbname=nowhere")


@pytest.mark.promise("Payloads and passwords are in no log, error, metric, argument, XCom or plan")
def test_records_that_hold_payloads_show_none_in_their_repr(queue: TaskQueue) -> None:
    [chunk] = split_into_chunks("work", [NewTask("a", {"secret": SECRET})])
    assert "'a'" in repr(chunk)
    [task] = queue.push("work", [NewTask("a", {"secret": SECRET})])
    texts = queue.task_texts("work", task.sequence, 1000)
    assert texts is not None
    assert SECRET in (texts.payload or "")
    assert SECRET not in repr(chunk) + repr(texts) + repr(task)


@pytest.mark.parametrize("variable", ["TASKQ_DSN", "TASKQ_DSN_FILE"])
def test_the_dsn_comes_from_its_variable_or_from_a_file(
    dsn: str,
    variable: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    no_environment: None,  # noqa: ARG001 - it acts
) -> None:
    (tmp_path / "dsn").write_text(f"{dsn}\n", encoding="utf-8")
    monkeypatch.setenv(variable, dsn if variable == "TASKQ_DSN" else str(tmp_path / "dsn"))
    with connect() as conn:
        assert conn.info.dbname == conninfo_to_dict(dsn)["dbname"]


def test_a_failed_connection_is_reported_in_one_sentence_with_what_was_given(
    server_dsn: str,
    no_environment: None,  # noqa: ARG001 - it acts
) -> None:
    missing = make_conninfo(server_dsn, dbname="no_such_database")
    for dsn, named in ((DSNS["away"], r"127\.0\.0\.1"), (missing, "no_such_database"), (None, "TASKQ_DSN")):
        with pytest.raises(TaskQueueError, match=named) as error:
            connect(dsn, connect_timeout=3)
        sentence(error.value)


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe"], ids=["missing", "empty", "binary"])
def test_an_empty_dsn_file_is_reported_with_its_variable(
    content: bytes | None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    no_environment: None,  # noqa: ARG001 - it acts
) -> None:
    file = tmp_path / "dsn"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv("TASKQ_DSN_FILE", str(file))
    with pytest.raises(TaskQueueError, match="TASKQ_DSN_FILE") as error:
        connect(connect_timeout=2)
    sentence(error.value)


def test_the_error_of_a_missing_schema_names_the_command_to_run(empty_dsn: str) -> None:
    with connect(empty_dsn, autocommit=True) as conn:
        queue = TaskQueue(conn)
        for call in (partial(queue.push, "t", ["a"]), partial(queue.push_stream, "t", ["a"]), queue.count):
            with pytest.raises(SchemaMismatch, match="install") as error:
                call()
            assert "missing" in sentence(error.value)


def test_a_poll_under_a_lapsed_lease_is_refused_and_the_error_says_that_a_heartbeat_renews_it(
    queue: TaskQueue, owner: Owner
) -> None:
    queue.push("work", ["a"])
    lapse(queue, owner)
    for verb in (queue.poll, queue.poll_batch, queue.claim):
        with pytest.raises(LeaseLost, match="heartbeat") as error:
            verb("work", owner, 1)
        sentence(error.value)
    assert queue.ready("work") == 1


def test_an_error_names_only_the_first_tasks_that_are_not_held(queue: TaskQueue, owner: Owner) -> None:
    with pytest.raises(NotHeld, match=r"5000") as error:
        queue.complete(owner, dict.fromkeys(range(10**9, 10**9 + 5000), Result.SUCCESS))
    assert "1000000000" in sentence(error.value)
    assert len(sentence(error.value)) < 1000


@pytest.fixture
def telling_queue(dsn: str) -> Iterator[TaskQueue]:
    """A queue whose server puts the parameters of a failed statement into the error."""
    with connect(dsn, autocommit=True, options="-c log_parameter_max_length_on_error=-1") as conn:
        yield TaskQueue(conn)


@pytest.mark.promise("Payloads and passwords are in no log, error, metric, argument, XCom or plan")
@pytest.mark.parametrize(
    ("topic", "kind"),
    [("nowhere", UnknownTopic), ("work", psycopg.errors.LockNotAvailable)],
    ids=["translated", "of psycopg"],
)
def test_the_traceback_of_an_error_has_no_parameter_of_the_statement(
    telling_queue: TaskQueue, queue: TaskQueue, session: TaskQueue, topic: str, kind: type[Exception]
) -> None:
    if topic == "work":
        block_verbs(session.conn)
        telling_queue.conn.execute("SET lock_timeout = '10ms'")
    with pytest.raises(kind) as error:
        telling_queue.push(topic, [NewTask("a", {"secret": SECRET})])
    session.conn.rollback()
    cause = error.value.__cause__ or error.value
    assert isinstance(cause, psycopg.Error)
    assert SECRET in (cause.diag.context or "")  # the server has sent it
    text = "".join(traceback.format_exception(error.value))
    assert kind.__name__ in text
    assert SECRET not in text
    sentence(error.value)
    assert queue.page("work") == []


def test_a_connection_that_died_is_no_error_of_the_queue(queue: TaskQueue, session: TaskQueue) -> None:
    """The connection belongs to the caller. Its error is psycopg's own, so callers know that they can retry."""
    session.conn.execute("SELECT")
    queue.conn.execute("SELECT pg_terminate_backend(%s)", (session.conn.info.backend_pid,))
    with pytest.raises(psycopg.OperationalError):
        session.push("work", ["a"])
    session.conn.close()


@pytest.mark.parametrize("down", [True, False], ids=["no server", "a server that is read-only"])
def test_the_command_line_reports_an_error_in_one_sentence(empty_dsn: str, down: bool) -> None:
    dsn = DSNS["away"] if down else make_conninfo(empty_dsn, options="-c default_transaction_read_only=on")
    done = subprocess.run(
        [sys.executable, "-m", "airflow_provider_taskq.cli", "install"],
        env={"TASKQ_DSN": dsn, "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert ("127.0.0.1" if down else "read-only transaction") in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert SECRET not in done.stderr + done.stdout


@pytest.mark.promise("A call that raises an error has changed nothing")
def test_a_deadlock_is_a_transient_error_of_psycopg_and_of_the_queue_and_can_be_pickled() -> None:
    error = to_queue_error(psycopg.errors.DeadlockDetected("deadlock detected"))
    assert isinstance(error, Deadlock)
    assert isinstance(error, TaskQueueError)
    assert isinstance(error, psycopg.errors.DeadlockDetected)
    assert classify(error) is Fault.RETRY
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own bytes
    assert str(error).startswith("this statement and another transaction waited for each other's locks (a deadlock)")
    with pytest.raises(Deadlock) as raised, translate_errors():
        raise error
    assert raised.value is error


# TaskQueue accepts a connection of psycopg 3. The error for another object names the object to pass.


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


def test_any_other_object_is_refused_with_the_object_to_pass_or_the_call_that_opens_a_connection(
    engine: sqlalchemy.Engine, conn: psycopg.Connection, dsn: str
) -> None:
    old = psycopg2.connect(dsn)
    refused: list[tuple[Any, str]] = [
        (engine, r"engine\.begin\(\) as connection.*connection\.connection\.driver_connection"),
        (old, r"not a psycopg2\.extensions\.connection: pass a connection of psycopg 3"),
        (conn.cursor(), r"pass cursor\.connection"),
        (psycopg.AsyncConnection.__new__(psycopg.AsyncConnection), "TaskQueue is synchronous"),
        (django.db.connection, r"pass connection\.connection within transaction\.atomic\(\)"),
        ("postgresql://host/database", r"airflow_provider_taskq\.queue\.connect\(dsn\)"),
        (None, r"open one with psycopg\.connect\(\)"),
    ]
    for given, advice in refused:
        with pytest.raises(TypeError, match=f"TaskQueue needs a psycopg.Connection.*{advice}"):
            TaskQueue(given)
    old.close()
