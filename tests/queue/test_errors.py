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
    State,
    TaskQueue,
    TaskQueueError,
    connect,
)
from airflow_provider_taskq.queue.errors import is_connection_lost
from airflow_provider_taskq.queue.task_input import split_into_chunks
from airflow_provider_taskq.worker.connection import connection_factory
from tests.internals import block_verbs
from tests.queue.conftest import image, lapse, task_in

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
    with pytest.raises(TaskQueueError) as error:
        connect(f"postgresql://me:{SECRET}@127.0.0.1:1/nowhere", connect_timeout=3)
    assert "127.0.0.1" in sentence(error.value)
    assert SECRET not in sentence(error.value)


def test_a_database_that_does_not_exist_is_reported_in_one_sentence(server_dsn: str) -> None:
    with pytest.raises(TaskQueueError, match="no_such_database") as error:
        connect(make_conninfo(server_dsn, dbname="no_such_database"))
    sentence(error.value)


def test_the_error_without_a_dsn_names_the_variable_to_set(no_environment: None) -> None:  # noqa: ARG001 - it acts
    with pytest.raises(TaskQueueError, match="TASKQ_DSN") as error:
        connect()
    sentence(error.value)


@pytest.mark.promise("Payloads and passwords are in no log, error, metric, argument, XCom or plan")
@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://me:{SECRET}@host:not-a-port/db",
        f"postgresql://me:pass/{SECRET}@127.0.0.1/db",
        f"postgresql://me:{SECRET}/word@127.0.0.1/db",
        f"postgresql://me:pa@{SECRET}@127.0.0.1:1/db",
        f"postgresql://me:{SECRET}?x@127.0.0.1:1/db",
        f"postgresql://me:{SECRET}#x@127.0.0.1:1/db",
        f"postgresql://me:%zz{SECRET}@127.0.0.1:1/db",
        f"postgresql://me:[{SECRET}@127.0.0.1:1/db",
        f"postgres:/me:{SECRET}@127.0.0.1/db",
        f"host=127.0.0.1 password=two {SECRET}",
        f"host=127.0.0.1 password='{SECRET}",
        f"host=127.0.0.1 pasword={SECRET}",
        f"mysql://me:{SECRET}@127.0.0.1/db",
        f"host=127.0.0.1 port=1 password={SECRET}\ud800",
        f"host=127.0.0.1 port=1 password={SECRET}\x00",
        f"postgresql://me:{SECRET}@db..example/db",
        f"postgresql://me:{SECRET}@{'a' * 64}/db",
    ],
    ids=[
        *("bad port", "slash before", "slash after", "at sign", "question mark", "hash", "percent", "bracket"),
        *(
            "one slash",
            "blank",
            "open quote",
            "misspelt",
            "another scheme",
            "surrogate",
            "NUL",
            "two dots",
            "long label",
        ),
    ],
)
def test_a_malformed_dsn_never_shows_its_password(dsn: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TaskQueueError) as error:
        connect(dsn, connect_timeout=2)
    assert SECRET not in sentence(error.value)
    assert SECRET not in "".join(capfd.readouterr())


def test_a_dsn_with_a_nul_is_refused_and_not_cut_off_there(dsn: str) -> None:
    with pytest.raises(TaskQueueError, match="NUL"):
        connect(f"{dsn}\x00 dbname=nowhere")


@pytest.mark.parametrize(
    ("dsn", "options"),
    [
        (f"postgresql://me:{SECRET}@127.0.0.1:1/nowhere", {}),
        (f"postgresql://me:pa@{SECRET}@127.0.0.1:1/db", {}),
        (f"host=127.0.0.1 pasword={SECRET}", {}),
        (f"host=127.0.0.1 port=1 password={SECRET}\ud800", {}),
        (f"host=127.0.0.1 port=1 password={SECRET}\x00", {}),
        (f"postgresql://me:{SECRET}@db..example/db", {}),
        ("host=127.0.0.1 port=1", {"password": SECRET}),
    ],
    ids=["away", "at sign", "misspelt", "surrogate", "NUL", "two dots", "option"],
)
def test_no_frame_of_a_failed_connection_has_the_password(dsn: str, options: dict[str, str]) -> None:
    """Formatters of tracebacks may print the local variables of each frame, such as those of rich and structlog."""
    for call in (connection_factory(dsn), partial(connect, dsn, connect_timeout=2, **options)):
        with pytest.raises(TaskQueueError) as error:
            call()
        frames = [frame for frame, _ in traceback.walk_tb(error.tb) if frame.f_code.co_filename != __file__]
        assert frames
        assert [frame.f_code.co_name for frame in frames if SECRET in repr(frame.f_locals)] == []


@pytest.mark.promise("Payloads and passwords are in no log, error, metric, argument, XCom or plan")
def test_records_that_hold_payloads_show_none_in_their_repr(queue: TaskQueue) -> None:
    [chunk] = split_into_chunks("work", [NewTask("a", {"secret": SECRET})])
    assert "'a'" in repr(chunk)
    [task] = queue.push("work", [NewTask("a", {"secret": SECRET})])
    texts = queue.task_texts("work", task.sequence, 1000)
    assert texts is not None
    assert SECRET in (texts.payload or "")
    assert SECRET not in repr(chunk) + repr(texts) + repr(task)


def test_the_dsn_comes_from_its_variable(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKQ_DSN", dsn)
    with connect() as conn:
        assert conn.info.dbname == conninfo_to_dict(dsn)["dbname"]


def test_the_dsn_comes_from_a_file(dsn: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TASKQ_DSN", raising=False)
    (tmp_path / "dsn").write_text(f"{dsn}\n", encoding="utf-8")
    monkeypatch.setenv("TASKQ_DSN_FILE", str(tmp_path / "dsn"))
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
        lambda queue, _owner: queue.create_topic("t"),
        lambda queue, _owner: queue.topics(),
        lambda queue, _owner: queue.push("t", ["a"]),
        lambda queue, _owner: queue.push_stream("t", ["a"]),
        lambda queue, _owner: queue.register("me"),
        lambda queue, owner: queue.poll("t", owner),
        lambda queue, _owner: queue.ready("t"),
        lambda queue, owner: queue.complete(owner, {1: Result.SUCCESS}),
        lambda queue, _owner: queue.expire(),
        lambda queue, _owner: queue.maintain(),
        lambda queue, owner: queue.held(owner),
        lambda queue, _owner: queue.count(),
        lambda queue, _owner: queue.page("t"),
    ],
    ids=[
        "create_topic",
        "topics",
        "push",
        "push_stream",
        "register",
        "poll",
        "ready",
        "complete",
        "expire",
        "maintain",
        "held",
        "count",
        "page",
    ],
)
def test_the_error_of_a_missing_schema_names_the_command_to_run(
    empty_dsn: str, owner: Owner, verb: Callable[[TaskQueue, Owner], object]
) -> None:
    with connect(empty_dsn, autocommit=True) as conn, pytest.raises(SchemaMismatch, match="install") as error:
        verb(TaskQueue(conn), owner)
    assert "missing" in sentence(error.value)


def test_a_lost_lease_names_the_owner(queue: TaskQueue, owner: Owner) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    queue.register(owner.name)
    before = image(queue)
    for verb in (
        lambda: queue.heartbeat(owner),
        lambda: queue.poll("work", owner),
        lambda: queue.complete(owner, {task: Result.SUCCESS}),
    ):
        with pytest.raises(LeaseLost, match=rf"'{owner.name}'.*{owner.fence}") as error:
            verb()
        sentence(error.value)
    assert image(queue) == before


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


def test_an_error_keeps_the_error_of_postgresql_as_its_cause(queue: TaskQueue) -> None:
    with pytest.raises(TaskQueueError) as error:
        queue.push("nowhere", ["a"])
    assert isinstance(error.value.__cause__, psycopg.Error)


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


@pytest.mark.parametrize("action", ["install", "verify", "uninstall"])
def test_the_command_line_reports_an_error_in_one_sentence(action: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "airflow_provider_taskq.queue", action],
        env={"TASKQ_DSN": f"postgresql://me:{SECRET}@127.0.0.1:1/db", "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert SECRET not in done.stderr + done.stdout


def test_the_command_line_reports_an_error_of_the_server_in_one_sentence(empty_dsn: str) -> None:
    read_only = "-c default_transaction_read_only=on"
    done = subprocess.run(
        [sys.executable, "-m", "airflow_provider_taskq.queue", "install"],
        env={"TASKQ_DSN": make_conninfo(empty_dsn, options=read_only), "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "read-only transaction" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_an_answer_that_ends_with_the_end_of_the_session_is_a_lost_connection() -> None:
    """So psycopg reports a server that sends the answer to a COMMIT and the end of the session at once."""
    assert is_connection_lost(psycopg.InternalError("received 2 results from command 'COMMIT'"))
    assert not is_connection_lost(psycopg.errors.InternalError_("an error of the server, with its code"))
