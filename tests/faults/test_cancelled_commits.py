"""Commits that the server cancels: statement_timeout, lock_timeout, a full disk, a deadlock."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from airflow_provider_taskq.consumer import Consumer
from airflow_provider_taskq.queue import State, Task, TaskQueue, connect
from airflow_provider_taskq.spark.writers import commit_with_retry
from airflow_provider_taskq.worker import Batch, Timeouts
from tests.consumer.consumers import NEVER, Heard, quick
from tests.faults.conftest import MakeWorker, ends
from tests.internals import block_verbs, hold_tasks
from tests.queue.conftest import until
from tests.worker.conftest import FatalListener, Gate

pytestmark = pytest.mark.promise("the server cancels a commit")

SECOND = timedelta(seconds=1)
TIMEOUTS = ["statement_timeout", "lock_timeout"]


@contextmanager
def completions_blocked(open_queue: Callable[[], TaskQueue]) -> Iterator[None]:
    """While the block runs, another transaction keeps every task from being completed."""
    blocking = open_queue()
    hold_tasks(blocking.conn)
    yield
    blocking.conn.rollback()


def limit_statements(queue: TaskQueue, setting: str, value: str = "100ms") -> None:
    """Limits the statements of new sessions."""
    statement = sql.SQL("ALTER DATABASE {} SET {} = {}")
    queue.conn.execute(statement.format(sql.Identifier(queue.conn.info.dbname), sql.Identifier(setting), value))


def sleep_until_interrupted(queue: TaskQueue) -> None:
    """Runs a statement that the server cancels. Other statements of the worker have no limit."""
    queue.conn.execute("SET LOCAL statement_timeout = 100")
    queue.conn.execute("SELECT pg_sleep(600)")


@pytest.mark.faults
@pytest.mark.parametrize("setting", TIMEOUTS)
def test_finished_work_is_not_failed_by_a_commit_that_the_server_cancels(
    dsn: str, queue: TaskQueue, open_queue: Callable[[], TaskQueue], run_worker: MakeWorker, setting: str
) -> None:
    gate, fatal = Gate(), list[BaseException]()
    queue.push("work", ["a", "b"])
    limit_statements(queue, setting, "1s")  # the worker's own statements have to pass on a slow machine
    run_worker(dsn, gate, size=2, listener=FatalListener(fatal.append))
    assert gate.began.wait(120)
    with completions_blocked(open_queue):
        gate.open.set()
        until(lambda: fatal)  # more tries than a deadlock gets
    until(lambda: ends(queue) == {"a": State.SUCCEEDED, "b": State.SUCCEEDED})
    assert gate.started == ["a", "b"]
    assert isinstance(fatal[0], psycopg.errors.QueryCanceled | psycopg.errors.LockNotAvailable)


@pytest.mark.faults
def test_a_participant_that_the_server_interrupts_for_a_while_fails_nothing(
    dsn: str, queue: TaskQueue, run_worker: MakeWorker
) -> None:
    called: list[str] = []

    def handle(task: Task, batch: Batch) -> None:
        def write(within: TaskQueue, _: object) -> None:
            called.append(task.identifier)
            if len(called) < 8:
                sleep_until_interrupted(within)

        batch.in_commit(write, task)

    [pushed] = queue.push("work", ["a"])
    run_worker(dsn, handle)
    until(lambda: ends(queue) == {"a": State.SUCCEEDED})
    assert called == ["a"] * 8
    task = queue.task("work", pushed.sequence)
    assert task is not None
    assert (task.attempt, task.error) == (1, None)


def test_a_consumer_continues_after_the_server_cancels_its_progress(
    dsn: str, queue: TaskQueue, open_queue: Callable[[], TaskQueue]
) -> None:
    heard, started, go_on = Heard(), threading.Event(), threading.Event()

    def handle(event: Task) -> None:
        started.set()
        go_on.wait(60)
        heard.hear(event)

    heard.group.on()(handle)
    queue.push("work", ["a"])
    limit_statements(queue, "lock_timeout")
    settings = quick(lease=SECOND * 30, transactional=True)
    with Consumer(dsn, heard.group, "work", settings, on_failure=heard.fail) as consumer:
        assert started.wait(120)
        blocking = open_queue()
        block_verbs(blocking.conn)
        go_on.set()
        heard.wait(1)
        time.sleep(0.5)  # so that the server cancels the progress, and the reader's heartbeats
        blocking.conn.rollback()
        assert heard.wait(2) == ["a", "a"]  # the progress of the first was not stored
        queue.push("work", ["b"])
        until(lambda: "b" in heard.identifiers)
        assert consumer.errors == {}
        assert heard.failures == []


def test_a_drain_retries_a_commit_that_the_server_cancelled(dsn: str) -> None:
    tries: list[Any] = []

    def commit() -> None:
        tries.append(1)
        with connect(dsn, options=f"-c statement_timeout={50 if len(tries) < 3 else 0}") as conn:
            conn.execute("SELECT pg_sleep(0.2)")

    commit_with_retry(commit)
    assert len(tries) == 3


def end_by_idling(queue: TaskQueue) -> None:
    """Lets the server end the session, because it does nothing in its transaction."""
    queue.conn.execute("SET LOCAL idle_in_transaction_session_timeout = 50")
    with connect(queue.conn.info.dsn, password=queue.conn.info.password, autocommit=True) as other:
        query, pid = "SELECT FROM pg_stat_activity WHERE pid = %s", queue.conn.info.backend_pid
        until(lambda: other.execute(query, (pid,)).fetchone() is None)


def sleep_long(queue: TaskQueue) -> None:
    """Runs a statement without an end."""
    queue.conn.execute("SELECT pg_sleep(600)")


TOO_SLOW = [
    pytest.param(sleep_until_interrupted, "statement timeout", id="statement timeout"),
    pytest.param(end_by_idling, "idle-in-transaction", id="idle-in-transaction"),
    pytest.param(sleep_long, "no answer within", id="no answer", marks=[pytest.mark.slow, pytest.mark.faults]),
]


@pytest.mark.parametrize(("dawdle", "reason"), TOO_SLOW)
def test_a_participant_that_is_always_too_slow_fails_only_its_task_with_the_reason(
    dsn: str, queue: TaskQueue, run_worker: MakeWorker, dawdle: Callable[[TaskQueue], None], reason: str
) -> None:
    called: list[str] = []

    def handle(task: Task, batch: Batch) -> None:
        def write(within: TaskQueue, _: object) -> None:
            called.append(task.identifier)
            if task.identifier == "slow":
                dawdle(within)

        batch.in_commit(write, task)

    queue.push("work", ["slow", "quick"])
    run_worker(dsn, handle, size=2, lease=SECOND, timeouts=Timeouts(handler_statement=SECOND * 0.3))
    until(lambda: ends(queue) == {"slow": State.FAILED, "quick": State.SUCCEEDED})
    [slow] = queue.page("work", state=State.FAILED)
    assert reason in str(slow.error)
    assert called.count("slow") >= 3


@pytest.mark.promise("a worker stalls and continues")
@pytest.mark.parametrize(
    ("dawdle", "reason"),
    [
        pytest.param(sleep_long, "no answer within", marks=pytest.mark.faults),
        (end_by_idling, "idle-in-transaction"),
    ],
)
def test_a_transactional_handler_that_is_always_too_slow_fails_with_the_reason(
    dsn: str, queue: TaskQueue, dawdle: Callable[[TaskQueue], None], reason: str
) -> None:
    heard, called = Heard(), list[str]()

    @heard.group.on()
    def handle(task: Task, queue: TaskQueue) -> None:
        called.append(task.identifier)
        dawdle(queue)

    queue.push("work", ["a"])
    timeouts = Timeouts(call=SECOND, handler_statement=SECOND / 10)
    settings = quick(lease=SECOND * 30, transactional=True, retry=NEVER, timeouts=timeouts)
    with Consumer(dsn, heard.group, "work", settings) as consumer:
        until(lambda: 0 in consumer.errors)
    assert reason in str(consumer.errors[0])
    assert called == ["a"] * 3
