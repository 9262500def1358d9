"""Logs, metrics and stored errors of workers and consumers show neither the password nor a payload."""

import logging
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import psutil
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_taskq.consumer import Consumer, ConsumerGroup
from airflow_provider_taskq.queue import NewTask, Result, State, Task, TaskQueue
from airflow_provider_taskq.worker import Batch, Groups, MetricsEndpoint, Worker, each
from tests.consumer.consumers import at_once, quick
from tests.queue.conftest import everything, states, until

pytestmark = pytest.mark.promise("Payloads and passwords are in no log, error, metric, argument, XCom or plan")

MARK = "markedpayload0815"
NAME = "taskq marked"
# With a time limit, the function returns when the session has ended.
END_SESSIONS = "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = %s"


@pytest.fixture
def telling_dsn(dsn: str) -> str:
    """The test's database, whose errors have the parameters of statements, under a name of its own."""
    return make_conninfo(dsn, application_name=NAME, options="-c log_parameter_max_length_on_error=-1")


@pytest.fixture
def cut(queue: TaskQueue) -> Callable[[], None]:
    """Ends all sessions of the worker, once."""
    done: list[bool] = []

    def end_sessions() -> None:
        if not done:
            done.append(True)
            queue.conn.execute(END_SESSIONS, (NAME,))

    return end_sessions


def push(queue: TaskQueue, *identifiers: str) -> None:
    queue.push("work", [NewTask(identifier, {"secret": MARK}) for identifier in identifiers])


@contextmanager
def running(worker: Worker) -> Iterator[Worker]:
    """Starts a worker, and stops it at the end."""
    worker.start()
    try:
        yield worker
    finally:
        worker.stop(timedelta(seconds=5))


def assert_hidden(dsn: str, *texts: str) -> None:
    """Checks that no text has the password or the payload."""
    password = str(conninfo_to_dict(dsn)["password"])
    assert [text for text in texts if password in text or MARK in text] == []


def test_logs_metrics_and_errors_of_a_worker_show_neither_password_nor_payload(
    telling_dsn: str, queue: TaskQueue, cut: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("prometheus_client", reason="needs the extra prometheus")
    push(queue, "fails", "cut", "to nowhere", "done")

    def handle(task: Task, batch: Batch) -> None:
        if task.identifier == "fails":
            raise LookupError("no mailbox")
        if task.identifier == "cut":
            batch.in_commit(lambda *_: cut())
        if task.identifier == "to nowhere":
            batch.push(task, "nowhere", [NewTask("next", task.payload)])

    caplog.set_level(logging.DEBUG)
    with running(Worker(telling_dsn, "work", each(handle))) as worker, MetricsEndpoint(worker, port=0) as endpoint:
        until(lambda: {state for _, state in states(queue)} == {State.SUCCEEDED, State.FAILED})
        with urllib.request.urlopen(endpoint.url, timeout=30) as answer:  # noqa: S310  of this test
            metrics = answer.read().decode()
    assert dict(states(queue)) == {
        "fails": State.FAILED,
        "cut": State.SUCCEEDED,
        "to nowhere": State.FAILED,
        "done": State.SUCCEEDED,
    }
    assert "batch not committed, will retry" in caplog.text
    errors = {info.identifier: info.error or "" for info in everything(queue)}
    assert "UnknownTopic" in errors["to nowhere"]
    assert "taskq_worker_completed_total" in metrics
    assert_hidden(telling_dsn, caplog.text, metrics, *errors.values())


@pytest.mark.parametrize("runner", ["groups", "consumer"])
def test_logs_and_errors_of_a_worker_of_groups_and_a_consumer_show_neither_password_nor_payload(
    telling_dsn: str, queue: TaskQueue, cut: Callable[[], None], caplog: pytest.LogCaptureFixture, runner: str
) -> None:
    push(queue, "fails", "cut", "last")
    group = ConsumerGroup("readers")
    heard: list[str] = []

    @group.on()
    def handle(task: Task) -> None:
        heard.append(task.identifier)
        if task.identifier == "fails":
            raise LookupError("no mailbox")
        if task.identifier == "cut":
            cut()

    caplog.set_level(logging.DEBUG)
    if runner == "consumer":
        with Consumer(telling_dsn, group, "work", quick(retry=at_once(2))):
            until(lambda: "last" in heard)
        assert "event failed, skipped" in caplog.text
        assert "no mailbox" in caplog.text
        assert "connection lost, will retry" in caplog.text
    else:
        with Worker(telling_dsn, "work", handle, groups=Groups(), pause="50ms", lease="2s"):
            until(lambda: {state for _, state in states(queue)} == {State.FAILED, State.SUCCEEDED})
        assert "no mailbox" in "".join(info.error or "" for info in everything(queue))
    assert "taskq" in caplog.text
    assert_hidden(telling_dsn, caplog.text, *[info.error or "" for info in everything(queue)])


def test_the_log_of_a_worker_that_cannot_connect_again_does_not_show_the_password(
    telling_dsn: str, queue: TaskQueue, caplog: pytest.LogCaptureFixture
) -> None:
    role = sql.Identifier("taskq_marked_worker")
    queue.conn.execute(sql.SQL("CREATE ROLE {} LOGIN SUPERUSER PASSWORD 'opensesame4711'").format(role))
    caplog.set_level(logging.DEBUG)
    try:
        marked = make_conninfo(telling_dsn, user="taskq_marked_worker", password="opensesame4711")
        with running(Worker(marked, "work", each(lambda _: None), pause=timedelta(milliseconds=50))) as worker:
            push(queue, "before")
            until(lambda: worker.statistics().succeeded == 1)
            queue.conn.execute(sql.SQL("ALTER ROLE {} NOLOGIN").format(role))
            queue.conn.execute(END_SESSIONS, (NAME,))
            until(lambda: "is not permitted to log in" in caplog.text)
    finally:
        queue.conn.execute(END_SESSIONS, (NAME,))
        queue.conn.execute(sql.SQL("DROP ROLE {}").format(role))
    assert "opensesame4711" not in caplog.text


def report_arguments(task: Task) -> Result:
    """Fails with an error that has the arguments of this process and of its parent."""
    child = psutil.Process()
    parent = child.parent()
    assert parent is not None
    raise RuntimeError(f"arguments: {child.cmdline()} {parent.cmdline()} of task {task.identifier}")


def test_the_arguments_of_child_processes_show_neither_password_nor_payload(telling_dsn: str, queue: TaskQueue) -> None:
    push(queue, "a")
    with running(Worker(telling_dsn, "work", each(report_arguments, processes=1))):
        until(lambda: states(queue) == [("a", State.FAILED)])
    [info] = everything(queue)
    assert "spawn_main" in (info.error or "")
    assert_hidden(telling_dsn, info.error or "")
