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
from airflow_provider_taskq.queue import Result, RetryPolicy, State, Task, TaskQueue, TopicPolicy, connect
from airflow_provider_taskq.spark.staging import commit_with_retry
from airflow_provider_taskq.worker import Batch, WorkerListener
from airflow_provider_taskq.worker.grouped import GroupedWorker
from tests.consumer.consumers import Heard, quick
from tests.faults.conftest import MakeWorker
from tests.internals import block_verbs, hold_tasks
from tests.queue.conftest import until

pytestmark = pytest.mark.promise("the server cancels a commit")

SECOND = timedelta(seconds=1)
TIMEOUTS = ["statement_timeout", "lock_timeout"]


class Fatal(WorkerListener):
    """Stores fatal errors; a test can wait for one."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []

    def on_fatal(self, error: BaseException) -> None:
        """Stores the error."""
        self.errors.append(error)


def ends(queue: TaskQueue) -> dict[str, State]:
    return {task.identifier: task.state for task in queue.page("work")}


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


@pytest.mark.parametrize("setting", TIMEOUTS)
def test_finished_work_is_not_failed_by_a_commit_that_the_server_cancels(
    dsn: str, queue: TaskQueue, open_queue: Callable[[], TaskQueue], run_worker: MakeWorker, setting: str
) -> None:
    started, go_on, handled, fatal = threading.Event(), threading.Event(), [], Fatal()

    def handle(task: Task) -> None:
        handled.append(task.identifier)
        started.set()
        go_on.wait(60)

    queue.push("work", ["a", "b"])
    limit_statements(queue, setting, "1s")  # the worker's own statements have to pass on a slow machine
    run_worker(dsn, handle, size=2, listener=fatal)
    assert started.wait(20)
    with completions_blocked(open_queue):
        go_on.set()
        until(lambda: fatal.errors)  # more tries than a deadlock gets
    until(lambda: ends(queue) == {"a": State.SUCCEEDED, "b": State.SUCCEEDED})
    assert handled == ["a", "b"]
    assert isinstance(fatal.errors[0], psycopg.errors.QueryCanceled | psycopg.errors.LockNotAvailable)


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


def test_a_participant_that_is_always_too_slow_fails_only_its_task_with_the_reason(
    dsn: str, queue: TaskQueue, run_worker: MakeWorker
) -> None:
    called: list[str] = []

    def handle(task: Task, batch: Batch) -> None:
        def write(within: TaskQueue, _: object) -> None:
            called.append(task.identifier)
            if task.identifier == "slow":
                sleep_until_interrupted(within)

        batch.in_commit(write, task)

    queue.push("work", ["slow", "quick"])
    run_worker(dsn, handle, size=2, lease=SECOND)
    until(lambda: ends(queue) == {"slow": State.FAILED, "quick": State.SUCCEEDED})
    [slow] = queue.page("work", state=State.FAILED)
    assert "statement timeout" in str(slow.error)
    assert called.count("slow") >= 5


def test_a_participant_whose_session_is_always_ended_fails_its_task_with_the_reason(
    dsn: str, queue: TaskQueue, run_worker: MakeWorker
) -> None:
    def handle(task: Task, batch: Batch) -> None:
        def write(within: TaskQueue, _: object) -> None:
            if task.identifier == "idle":
                within.conn.execute("SET LOCAL idle_in_transaction_session_timeout = 50")
                until(lambda: not alive(within.conn.info.backend_pid))

        batch.in_commit(write, task)

    def alive(pid: int) -> bool:
        return queue.conn.execute("SELECT FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone() is not None

    queue.push("work", ["idle", "quick"])
    run_worker(dsn, handle, size=2, lease=SECOND)
    until(lambda: ends(queue) == {"idle": State.FAILED, "quick": State.SUCCEEDED})
    [idle] = queue.page("work", state=State.FAILED)
    assert "idle-in-transaction" in str(idle.error)


@pytest.mark.parametrize("takes_queue", [False, True])
@pytest.mark.parametrize("setting", TIMEOUTS)
def test_a_grouped_worker_does_not_fail_finished_work_when_the_server_cancels_the_commit(
    dsn: str, queue: TaskQueue, open_queue: Callable[[], TaskQueue], setting: str, takes_queue: bool
) -> None:
    queue.alter_topic("work", TopicPolicy(retry=RetryPolicy(max_attempts=1)))
    cancelled = threading.Event()
    started, go_on = threading.Event(), threading.Event()
    queue.conn.execute("CREATE TABLE effect (sequence bigint)")

    def handle(_: Task) -> None:
        started.set()
        go_on.wait(60)

    def handle_within(task: Task, queue: TaskQueue) -> None:
        handle(task)
        queue.conn.execute("INSERT INTO effect VALUES (%s)", (task.sequence,))

    queue.push("work", ["a"])
    limit_statements(queue, setting)

    class Watched(GroupedWorker):
        """Records when it waits before it retries a commit."""

        def _retry_commit(self, commit: Callable[[], Any]) -> Any:
            def tried() -> Any:
                try:
                    return commit()
                except psycopg.OperationalError:
                    cancelled.set()
                    raise

            return super()._retry_commit(tried)

    with Watched(dsn, "work", handle_within if takes_queue else handle, pause=SECOND / 10):
        assert started.wait(20)
        with completions_blocked(open_queue):
            go_on.set()
            assert cancelled.wait(20)
        until(lambda: ends(queue) == {"a": State.SUCCEEDED})
    [found] = queue.page("work")
    assert found.attempt == 1
    assert queue.conn.execute("SELECT count(*) FROM effect").fetchone() == (int(takes_queue),)


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
        assert started.wait(20)
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


def test_a_permanent_error_still_fails_the_batch(dsn: str, queue: TaskQueue, run_worker: MakeWorker) -> None:
    def handle(task: Task, batch: Batch) -> Result:
        batch.push(task, "no such topic", ["x"])
        return Result.SUCCESS

    queue.push("work", ["a"])
    run_worker(dsn, handle)
    until(lambda: ends(queue) == {"a": State.FAILED})


def test_a_handler_of_batches_that_is_always_too_slow_fails_its_task_with_the_reason(
    dsn: str, queue: TaskQueue
) -> None:
    queue.alter_topic("work", TopicPolicy(retry=RetryPolicy(max_attempts=1)))
    called: list[str] = []

    def handle(task: Task, queue: TaskQueue) -> None:
        called.append(task.identifier)
        queue.conn.execute("SELECT pg_sleep(600)")

    queue.push("work", ["a"])
    short = SECOND / 10
    with GroupedWorker(dsn, "work", handle, pause=short, call_timeout=SECOND, handler_statement_timeout=short):
        until(lambda: ends(queue) == {"a": State.FAILED})
    [slow] = queue.page("work")
    assert "no answer within" in str(slow.error)
    assert called == ["a"] * 3


def test_a_transactional_handler_that_is_always_too_slow_ends_its_partition_with_the_reason(
    dsn: str, queue: TaskQueue
) -> None:
    heard = Heard()

    def handle(_: Task, queue: TaskQueue) -> None:
        queue.conn.execute("SELECT pg_sleep(600)")

    heard.group.on()(handle)
    queue.push("work", ["a"])
    settings = quick(lease=SECOND * 30, transactional=True, call_timeout=SECOND, handler_statement_timeout=SECOND / 10)
    with Consumer(dsn, heard.group, "work", settings, on_failure=heard.fail) as consumer:
        until(lambda: 0 in consumer.errors)
    assert "no answer within" in str(consumer.errors[0])
