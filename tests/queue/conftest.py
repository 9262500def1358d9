"""Helpers for the queue's tests: tasks in any state, and time that passes by SQL."""

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

import psycopg
import pytest

from airflow_provider_taskq.queue import (
    Cursor,
    NewTask,
    Owner,
    Result,
    State,
    Task,
    TaskInfo,
    TaskQueue,
    TopicPolicy,
    connect,
)
from tests.internals import age_tasks, lapse_lease, set_ended_state, stop_autovacuum

T = TypeVar("T")
InBackground = Callable[[Callable[[], T]], "Future[T]"]

RESULTS = {
    State.FAILED: Result.FAILURE,
    State.SUSPENDED: Result.SUSPENSION,
    State.FILTERED: Result.FILTER,
    State.SUCCEEDED: Result.SUCCESS,
}


@pytest.fixture
def own_queue(own_dsn: str) -> Iterator[TaskQueue]:
    """A queue with a topic `work` in a database for one test, which autovacuum does not touch."""
    with connect(own_dsn, autocommit=True) as conn:
        stop_autovacuum(conn)
        queue = TaskQueue(conn)
        queue.create_topic("work")
        yield queue


@pytest.fixture
def session(open_queue: Callable[[], TaskQueue]) -> Iterator[TaskQueue]:
    """Another session, whose transaction stays open until the test commits it or rolls it back."""
    queue = open_queue()
    yield queue
    if not queue.conn.closed:
        queue.conn.rollback()


@pytest.fixture
def background() -> Iterator[Callable[[Callable[[], T]], "Future[T]"]]:
    """Runs a call in another thread."""
    with ThreadPoolExecutor(16) as pool:
        yield lambda call: pool.submit(call)


def until(condition: Callable[[], T], seconds: float = 300, pause: float = 0.005) -> T:
    """Waits until the condition holds, and returns its value; fails the test after a time limit."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "what was awaited did not happen"
        time.sleep(pause)  # between two checks
    return value


def flush_statistics(conn: psycopg.Connection) -> None:
    """Makes what an autocommit session has counted visible in PostgreSQL's statistics."""
    if conn.info.server_version >= 150_000:
        conn.execute("SELECT pg_stat_force_next_flush()")
        return
    # PostgreSQL 14 sends the counters of a session in order, and twice a second.
    conn.execute("CREATE TABLE IF NOT EXISTS public.flushed (n int)")
    conn.execute("INSERT INTO public.flushed VALUES (1)")
    written = conn.execute("SELECT count(*) FROM public.flushed").fetchone()
    counted = "SELECT n_tup_ins FROM pg_stat_clear_snapshot(), pg_stat_user_tables WHERE relname = 'flushed'"
    until(lambda: conn.execute(counted.encode()).fetchone() == written)


def await_lock_wait(conn: psycopg.Connection, waiting: TaskQueue) -> None:
    """Waits until the session of `waiting` waits for a lock of another session."""
    pid = waiting.conn.info.backend_pid
    query = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
    until(lambda: conn.execute(query, (pid,)).fetchone() is not None)


def await_standstill(conn: psycopg.Connection, waiting: TaskQueue) -> None:
    """Waits until the session of `waiting` waits for a lock, or sleeps before it checks the locks of others again."""
    pid = waiting.conn.info.backend_pid
    query = "SELECT FROM pg_stat_activity WHERE pid = %s AND (wait_event_type = 'Lock' OR wait_event = 'PgSleep')"
    until(lambda: conn.execute(query, (pid,)).rowcount)


def hurry(queue: TaskQueue, patience: str = "3s") -> TaskQueue:
    """Makes a session raise an error if it waits for a lock for longer than `patience`.

    The limit is not zero, because autovacuum may lock a table of the queue for a moment.
    """
    queue.conn.execute("SELECT set_config('lock_timeout', %s, false)", (patience,))
    queue.conn.execute("SET statement_timeout = '30s'")
    if not queue.conn.autocommit:
        queue.conn.commit()
    return queue


def lapse(queue: TaskQueue, owner: Owner, ago: timedelta = timedelta(seconds=1)) -> None:
    """Makes the lease of an owner have lapsed the given time ago."""
    lapse_lease(queue.conn, owner.name, ago)


def pass_time(queue: TaskQueue, duration: timedelta) -> None:
    """Lets time pass for all tasks and probes, by moving their stored times back."""
    age_tasks(queue.conn, duration)


def known(queue: TaskQueue, task: Task | int, topic: str = "work") -> TaskInfo:
    """The TaskInfo of a task that must exist."""
    info = queue.task(topic, task if isinstance(task, int) else task.sequence)
    assert info is not None, f"{task} is not in the topic {topic}"
    return info


def last_failure(queue: TaskQueue, task: Task) -> datetime:
    """The moment of a task's last failure, from which its delay counts."""
    *_, failed = (each for each in queue.timeline(task.topic, task.sequence) if each.what == "failed")
    moment: datetime = failed.happened
    return moment


def in_second(queue: TaskQueue, task: Task, failed_at: int, start: datetime) -> int:
    """Return the second since `start` in which a task that failed in second `failed_at` is due again.

    Delays are whole seconds, except for the last one, which ends at the maximum of the policy.
    """
    due = known(queue, task, task.topic).available_at
    delay = due - last_failure(queue, task)
    whole = not delay % timedelta(seconds=1)
    return failed_at + delay // timedelta(seconds=1) if whole else round((due - start) / timedelta(seconds=1))


def everything(queue: TaskQueue, topic: str = "work") -> list[TaskInfo]:
    """All tasks of a topic, in order of sequence."""
    return queue.page(topic, size=1_000_000)


def states(queue: TaskQueue, topic: str = "work") -> list[tuple[str, State]]:
    """Identifier and state of all tasks of a topic, in order of sequence."""
    return [(info.identifier, info.state) for info in everything(queue, topic)]


def image(queue: TaskQueue, topic: str = "work") -> list[str]:
    """Everything that can be read of a topic's tasks, to compare before and after a call."""
    return [repr(info) for info in everything(queue, topic)]


def identifiers(tasks: list[Task]) -> list[str]:
    """The identifiers of tasks, in order."""
    return [task.identifier for task in tasks]


def task_in(queue: TaskQueue, owner: Owner, state: State, identifier: str = "a", topic: str = "work") -> Task:
    """Makes a task in that state. The topic must have no READY task."""
    [task] = queue.push(topic, [identifier])
    if state is State.READY:
        return task
    if state is State.EXPIRED:
        owner = queue.register(f"crashing {task.sequence}")
    [polled] = queue.poll(topic, owner)
    assert polled == task
    if state in RESULTS:
        queue.complete(owner, {task: RESULTS[state]})
    elif state is State.EXPIRED:
        _expire(queue, owner, topic)
    elif state in (State.RECREATED, State.REDUNDANT):  # which no verb of this release makes of an ended task alone
        queue.complete(owner, {task: Result.SUCCESS})
        set_ended_state(queue.conn, state, task.sequence)
    assert known(queue, task, topic).state is state
    return task


def _expire(queue: TaskQueue, owner: Owner, topic: str) -> None:
    """Lets a lease lapse while the topic's policy keeps tasks of lapsed owners as EXPIRED."""
    policy = queue.policy(topic)
    queue.alter_topic(topic, keeps_expired())
    lapse(queue, owner)
    queue.expire()
    queue.alter_topic(topic, policy)


def keeps_expired(max_crashes: int = 3) -> TopicPolicy:
    """A policy under which tasks of lapsed owners wait as EXPIRED."""
    return TopicPolicy(on_expiry="expire", max_crashes=max_crashes)


def numbered(count: int, start: int = 0) -> Iterator[NewTask]:
    """New tasks with small payloads and distinct identifiers."""
    return (NewTask(f"task-{number}", {"number": number}) for number in range(start, start + count))


def complete_staged(queue: TaskQueue, owner: Owner, task: Task, result: Result, error: str | None = None) -> None:
    """Decides a task by a stage, as Spark's executors and driver do."""
    [stage] = queue.conn.execute("SELECT taskq.open_stage(%s, %s)", (owner.name, owner.fence)).fetchone() or [None]
    queue.conn.execute(
        "INSERT INTO taskq.staged (stage, part, attempt, sequence, result, error) VALUES (%s, 0, 0, %s, %s, %s)",
        (stage, task.sequence, result, error),
    )
    commit = "SELECT taskq.commit_stage(%s, '{0}', '{0}', '{1}', %s, %s)"
    queue.conn.execute(commit, (stage, owner.name, owner.fence))


class Reader:
    """Follows the log of a topic from its beginning."""

    def __init__(self, queue: TaskQueue, topic: str = "work") -> None:
        self.queue, self.topic = queue, topic
        self.after: Cursor | None = None

    def more(self, size: int = 1000) -> list[str]:
        """Returns the identifiers of the tasks since the last call."""
        events = self.queue.events(self.topic, self.after, size)
        self.after = events.cursor
        return [task.identifier for _, task in events]


def skip_numbers(conn: psycopg.Connection) -> None:
    """Carries out the statement of docs/production/backup.md for programs that have outlived a restore."""
    page = (Path(__file__).parents[2] / "docs/production/backup.md").read_text(encoding="utf-8")
    [statement] = re.findall(r"^SELECT setval\(.*?(?=^```)", page, re.MULTILINE | re.DOTALL)
    conn.execute(statement.encode())
