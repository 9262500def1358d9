"""Errors: each is one sentence with the remedy, and changes nothing."""

import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_taskq.queue import (
    LeaseLost,
    NewTask,
    NotHeld,
    Owner,
    Result,
    SchemaMismatch,
    TaskQueue,
    TaskQueueError,
    connect,
)
from airflow_provider_taskq.queue.errors import is_connection_lost
from airflow_provider_taskq.queue.task_input import split_into_chunks
from airflow_provider_taskq.worker.connection import connection_factory
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


def test_a_server_that_is_down_is_reported_in_one_sentence() -> None:
    with pytest.raises(TaskQueueError, match=r"127\.0\.0\.1") as error:
        connect(DSNS["away"], connect_timeout=3)
    sentence(error.value)


def test_a_database_that_does_not_exist_is_reported_in_one_sentence(server_dsn: str) -> None:
    with pytest.raises(TaskQueueError, match="no_such_database") as error:
        connect(make_conninfo(server_dsn, dbname="no_such_database"))
    sentence(error.value)


def test_the_error_without_a_dsn_names_the_variable_to_set(no_environment: None) -> None:  # noqa: ARG001 - it acts
    with pytest.raises(TaskQueueError, match="TASKQ_DSN") as error:
        connect()
    sentence(error.value)


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


@pytest.mark.parametrize(
    "verb",
    [
        lambda queue: queue.push("t", ["a"]),
        lambda queue: queue.push_stream("t", ["a"]),
        lambda queue: queue.count(),
        lambda queue: queue.page("t"),
    ],
    ids=["push", "push_stream", "count", "page"],
)
def test_the_error_of_a_missing_schema_names_the_command_to_run(
    empty_dsn: str, verb: Callable[[TaskQueue], object]
) -> None:
    with connect(empty_dsn, autocommit=True) as conn, pytest.raises(SchemaMismatch, match="install") as error:
        verb(TaskQueue(conn))
    assert "missing" in sentence(error.value)


def test_the_error_of_a_lapsed_lease_says_that_a_heartbeat_renews_it(queue: TaskQueue, owner: Owner) -> None:
    lapse(queue, owner)
    with pytest.raises(LeaseLost, match="heartbeat") as error:
        queue.poll("work", owner)
    sentence(error.value)


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
def test_the_traceback_of_an_error_has_no_parameter_of_the_statement(telling_queue: TaskQueue) -> None:
    with pytest.raises(TaskQueueError) as error:
        telling_queue.push("nowhere", [NewTask("a", {"secret": SECRET})])
    cause = error.value.__cause__
    assert isinstance(cause, psycopg.Error)
    assert SECRET in (cause.diag.context or "")  # the server has sent it
    text = "".join(traceback.format_exception(error.value))
    assert "UnknownTopic" in text
    assert SECRET not in text


def test_the_traceback_of_an_error_that_the_queue_does_not_translate_has_no_parameter_of_the_statement(
    telling_queue: TaskQueue, queue: TaskQueue, session: TaskQueue
) -> None:
    block_verbs(session.conn)
    telling_queue.conn.execute("SET lock_timeout = '10ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable) as error:
        telling_queue.push("work", [NewTask("a", {"secret": SECRET})])
    session.conn.rollback()
    assert SECRET in (error.value.diag.context or "")
    assert SECRET not in "".join(traceback.format_exception(error.value))
    assert sentence(error.value) == error.value.diag.message_primary
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
        [sys.executable, "-m", "airflow_provider_taskq.queue", "install"],
        env={"TASKQ_DSN": dsn, "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert ("127.0.0.1" if down else "read-only transaction") in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert SECRET not in done.stderr + done.stdout


def test_an_answer_that_ends_with_the_end_of_the_session_is_a_lost_connection() -> None:
    """So psycopg reports a server that sends the answer to a COMMIT and the end of the session at once."""
    assert is_connection_lost(psycopg.InternalError("received 2 results from command 'COMMIT'"))
    assert not is_connection_lost(psycopg.errors.InternalError_("an error of the server, with its code"))
