"""Moves of topics to their own tables: interrupted at every step, and several at once."""

import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import psycopg
import pytest

from airflow_provider_taskq.queue import (
    NewTask,
    Owner,
    Result,
    Severity,
    State,
    Task,
    TaskQueue,
    TaskQueueError,
    connect,
)
from tests.internals import SCHEMAS
from tests.queue.conftest import (
    InBackground,
    await_lock_wait,
    deadlocks,
    everything,
    identifiers,
    image,
    task_in,
    until,
)
from tests.queue.killed_mover import CALLS

pytestmark = pytest.mark.promise("A topic moves to tables of its own and back with all its tasks")

ROOT = Path(__file__).parents[2]
PATIENCE = timedelta(seconds=30)
MOVES: dict[str, Callable[[TaskQueue], bool]] = {
    "own": lambda queue: queue.own_partition("work", PATIENCE),
    "shared": lambda queue: queue.shared_partition("work", 10**6, PATIENCE),
}


@pytest.fixture
def queue(dsn: str) -> Iterator[TaskQueue]:
    """A queue with a topic `work`. At the end no topic has its own tables."""
    with connect(dsn, autocommit=True) as conn:
        queue = TaskQueue(conn)
        queue.create_topic("work")
        yield queue
        conn.execute("RESET ALL")
        for topic in queue.topics():
            queue.shared_partition(topic, most=10**9)
            queue.drop_topic(topic)
        queue.drop_vacant_partitions()


@pytest.fixture
def mover(dsn: str) -> Iterator[TaskQueue]:
    """Another session in autocommit, which a test may end."""
    with connect(dsn, autocommit=True) as conn:
        yield TaskQueue(conn)


def tables_apart(queue: TaskQueue) -> int:
    """The number of topics' own tables, attached or not."""
    query = (
        "SELECT FROM pg_class WHERE relnamespace = ANY (%s::regnamespace[]) AND relkind = 'r' AND relname ~ '_[0-9]+$'"
    )
    return queue.conn.execute(query, (SCHEMAS,)).rowcount


def constraints(queue: TaskQueue) -> int:
    """The number of constraints of an unfinished move, on shared tables and on those of the topic."""
    return queue.conn.execute("SELECT FROM pg_constraint WHERE conname ~ '^(topic_moves_|apart)'").rowcount


def is_paused(queue: TaskQueue) -> bool:
    return queue.conn.execute("SELECT FROM taskq.topic_summaries WHERE topic = 'work' AND paused").rowcount == 1


def unfinished(queue: TaskQueue) -> tuple[Severity, str]:
    """The health findings about unfinished moves."""
    [found] = [finding for finding in queue.health() if finding.subject == "unfinished moves"]
    return found.severity, found.detail


def is_moving(queue: TaskQueue) -> bool:
    """Whether health knows of a move that has started."""
    return unfinished(queue)[1] != "no topic is on its way to its own tables"


def kill_mover(queue: TaskQueue, dsn: str, call: str) -> None:
    """Runs a move in a process that dies right after a call, and returns when the server has ended its session."""
    before = sessions(queue)
    process = subprocess.run([sys.executable, "-m", "tests.queue.killed_mover", dsn, call], cwd=ROOT, check=False)
    assert process.returncode == -signal.SIGKILL
    until(lambda: sessions(queue) <= before)


def sessions(queue: TaskQueue) -> set[int]:
    """The sessions of this database."""
    query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
    return {pid for (pid,) in queue.conn.execute(query.encode())}


def fill(queue: TaskQueue, owner: Owner) -> list[str]:
    """Stores tasks in all states but ACTIVE, and returns their stored fields."""
    for state in sorted(set(State) - {State.ACTIVE}, key=lambda state: state is State.READY):
        task_in(queue, owner, state, identifier=state.name)
    return image(queue)


def assert_settled(queue: TaskQueue, owner: Owner, before: list[str], *, paused: bool, own: bool) -> None:
    """Checks that a topic has all its tasks, is paused or not, has no leftovers, and works."""
    assert image(queue) == before
    assert is_paused(queue) is paused
    assert (tables_apart(queue), constraints(queue)) == (3 if own else 0, 0)
    assert unfinished(queue) == (Severity.FINE, "no topic is on its way to its own tables")
    queue.push("work", ["new"])
    queue.resume_topic("work")
    polled = queue.poll("work", owner, 9)
    assert identifiers(polled) == ["READY", "new"]
    queue.complete(owner, dict.fromkeys(polled, Result.SUCCESS))


@pytest.mark.parametrize("paused", [False, True], ids=["", "paused by a person"])
@pytest.mark.parametrize("then", ["own", "shared"])
@pytest.mark.parametrize("call", CALLS)
def test_the_next_call_finishes_or_undoes_a_killed_move(
    queue: TaskQueue, owner: Owner, dsn: str, call: str, then: str, paused: bool
) -> None:
    before = fill(queue, owner)
    if paused:
        queue.pause_topic("work")
        before = image(queue)
    kill_mover(queue, dsn, call)
    started, done = CALLS.index(call) >= 1, CALLS.index(call) >= CALLS.index("move_to_own_tables")
    if started and not done:
        severity, detail = unfinished(queue)
        assert severity is Severity.CRITICAL
        assert "\"taskq topics partition own work\" or own_partition('work') finishes" in detail
        assert '"taskq topics partition shared work"' in detail
        assert is_paused(queue)
    assert MOVES[then](queue) is (not done if then == "own" else started)
    assert_settled(queue, owner, before, paused=paused, own=then == "own")


@pytest.mark.parametrize("then", ["own", "shared"])
def test_a_session_that_is_terminated_in_the_middle_of_a_step_leaves_a_move_that_can_be_finished_and_undone(
    queue: TaskQueue,
    owner: Owner,
    mover: TaskQueue,
    open_queue: Callable[[], TaskQueue],
    background: InBackground[Any],
    then: str,
) -> None:
    before = fill(queue, owner)
    reading = open_queue()
    reading.conn.execute("SELECT FROM taskq.task_info")
    moved = background(lambda: mover.own_partition("work"))
    pid = mover.conn.info.backend_pid
    asleep = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = 'PgSleep' AND query LIKE %s"
    until(lambda: queue.conn.execute(asleep, (pid, "%taskq.close_shared_tables(%")).rowcount)
    assert unfinished(queue)[0] is Severity.FINE
    queue.conn.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))
    with pytest.raises(psycopg.OperationalError):
        moved.result(60)
    reading.conn.rollback()
    assert MOVES[then](queue) is True
    assert_settled(queue, owner, before, paused=False, own=then == "own")


@pytest.mark.parametrize("verb", ["own", "shared"])
def test_a_second_move_of_a_topic_is_refused_with_the_session_of_the_first(
    queue: TaskQueue, owner: Owner, mover: TaskQueue, background: InBackground[Any], verb: str
) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    moved = background(lambda: mover.own_partition("work"))
    until(lambda: is_moving(queue))
    pid = mover.conn.info.backend_pid
    with pytest.raises(TaskQueueError, match=f"'work' is being moved to its own tables by session {pid} since 20"):
        MOVES[verb](queue)
    queue.complete(owner, {task: Result.SUCCESS})
    assert moved.result(60) is True
    assert MOVES[verb](queue) is (verb == "shared")


@pytest.mark.parametrize("second", ["own", "shared"])
@pytest.mark.parametrize("first", ["own", "shared"])
@pytest.mark.parametrize("topics", [("work", "work"), ("work", "other")], ids=["one topic", "two topics"])
def test_two_concurrent_moves_succeed_or_are_refused_with_a_reason(
    queue: TaskQueue,
    owner: Owner,
    dsn: str,
    background: InBackground[Any],
    topics: tuple[str, str],
    first: str,
    second: str,
) -> None:
    queue.create_topic("other")
    before, ended = fill(queue, owner), deadlocks(queue.conn)
    for _ in range(4):
        for topic, verb in zip(topics, (first, second), strict=True):
            if verb == "shared":
                queue.own_partition(topic)
        barrier = Barrier(2)

        def move(topic: str, verb: str, barrier: Barrier = barrier) -> str:
            with connect(dsn, autocommit=True) as conn:
                barrier.wait(60)
                try:
                    mine = TaskQueue(conn)
                    return str((mine.own_partition if verb == "own" else mine.shared_partition)(topic))
                except TaskQueueError as error:
                    return str(error)

        calls = [background(partial(move, *pair)) for pair in zip(topics, (first, second), strict=True)]
        said = [call.result(120) for call in calls]
        assert "True" in said, said
        assert all(one in ("True", "False") or "is being moved to its own tables by session" in one for one in said), (
            said
        )
        if topics[0] != topics[1]:
            assert said == ["True", "True"]
        assert (constraints(queue), is_paused(queue), image(queue)) == (0, False, before)
        for topic in ("work", "other"):
            queue.shared_partition(topic)
        assert tables_apart(queue) == 0
    assert deadlocks(queue.conn) == ended


def test_a_move_that_another_session_has_taken_over_changes_nothing_more(queue: TaskQueue, mover: TaskQueue) -> None:
    first = mover.conn.execute("SELECT taskq.begin_partition_move('work', '1 second')").fetchone()
    assert first is not None
    mover.conn.execute("SELECT taskq.end_move_session(%s)", first)
    second = queue.conn.execute("SELECT taskq.begin_partition_move('work', '1 second')").fetchone()
    with pytest.raises(psycopg.Error, match="this move of topic 'work' has ended: another session has finished"):
        mover.conn.execute("SELECT taskq.create_own_tables('work', %s, '1 second')", first)
    assert mover.conn.execute("SELECT taskq.undo_partition_move('work', %s, '1 second')", first).fetchone() == (False,)
    assert queue.conn.execute("SELECT taskq.undo_partition_move('work', %s, '1 second')", second).fetchone() == (True,)
    assert not is_paused(queue)


@pytest.mark.parametrize("wanted", ["paused", "resumed"])
def test_a_topic_that_is_paused_or_resumed_while_it_moves_is_so_when_the_move_has_ended(
    queue: TaskQueue, owner: Owner, mover: TaskQueue, background: InBackground[Any], wanted: str
) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    if wanted == "resumed":
        queue.pause_topic("work")
    moved = background(lambda: mover.own_partition("work"))
    until(lambda: is_moving(queue))
    change = queue.pause_topic if wanted == "paused" else queue.resume_topic
    assert [change("work"), change("work")] == [True, False]
    assert is_paused(queue), "it stands still until it has moved"
    queue.complete(owner, {task: Result.SUCCESS})
    assert moved.result(60)
    assert is_paused(queue) is (wanted == "paused")


def test_a_topic_that_is_dropped_after_its_move_was_killed_leaves_tables_that_are_dropped_later(
    queue: TaskQueue, dsn: str
) -> None:
    kill_mover(queue, dsn, "close_shared_tables")
    assert queue.drop_topic("work")
    assert (tables_apart(queue), constraints(queue)) == (3, 6)
    details = [finding.detail for finding in queue.health() if finding.severity > Severity.FINE]
    assert any("1 dropped topics have left empty tables" in detail for detail in details)
    assert queue.drop_vacant_partitions() == 1
    assert (tables_apart(queue), constraints(queue)) == (0, 0)


def test_the_error_of_a_push_after_a_killed_move_names_the_functions_that_finish_or_undo_it(
    queue: TaskQueue, dsn: str
) -> None:
    kill_mover(queue, dsn, "close_shared_tables")
    with pytest.raises(TaskQueueError, match="own_partition finishes the move, and shared_partition undoes it"):
        queue.push("work", ["a"])


def test_the_error_of_a_push_after_a_killed_move_shows_no_payload(queue: TaskQueue, dsn: str) -> None:
    """PostgreSQL's detail has the whole row, and a traceback prints the error of PostgreSQL as the cause."""
    task = NewTask("a", {"secret": "markedpayload0815"})  # not in a line of the traceback
    kill_mover(queue, dsn, "close_shared_tables")
    with pytest.raises(TaskQueueError) as error:
        queue.push("work", [task])
    cause = error.value.__cause__
    assert isinstance(cause, psycopg.Error)
    assert "markedpayload0815" in (cause.diag.message_detail or "")
    assert "markedpayload0815" not in "".join(traceback.format_exception(error.value))


def push_to_two_topics(queue: TaskQueue, session: TaskQueue, background: InBackground[Any]) -> "Future[list[Task]]":
    """Uses the shared tables for another topic in a transaction, and then waits to push to `work`."""
    session.push("other", ["x"])
    pushed: Future[list[Task]] = background(lambda: session.push("work", ["a"]))
    await_lock_wait(queue.conn, session)
    return pushed


def begin_moving(mover: TaskQueue) -> tuple[int, int]:
    """Starts a move, up to its tables and the lock of pushes; returns its token and the number of the topic."""
    started = mover.conn.execute("SELECT taskq.begin_partition_move('work', '1 second')").fetchone()
    assert started is not None
    mover.conn.execute("SELECT taskq.create_own_tables('work', %s, '1 second')", started)
    number = mover.conn.execute("SELECT taskq.lock_pushes('work', '1 second')").fetchone()
    assert number is not None
    return started[0], number[0]


def test_a_move_that_has_closed_nothing_gives_way_to_a_transaction_that_waits_for_it(
    queue: TaskQueue, session: TaskQueue, mover: TaskQueue, background: InBackground[Any]
) -> None:
    """PostgreSQL would end one of the two, because the transaction uses the tables that the move needs for itself."""
    queue.create_topic("other")
    ended = deadlocks(queue.conn)
    token, number = begin_moving(mover)
    pushed = push_to_two_topics(queue, session, background)
    closed = mover.conn.execute("SELECT taskq.close_shared_tables('work', %s, '60 seconds')", (token,)).fetchone()
    assert closed == (False,)
    mover.conn.execute("SELECT taskq.unlock_pushes(%s)", (number,))
    assert identifiers(pushed.result(60)) == ["a"]
    session.conn.commit()
    mover.conn.execute("SELECT taskq.undo_partition_move('work', %s, '1 second')", (token,))
    assert deadlocks(queue.conn) == ended


def test_a_move_that_has_closed_the_shared_tables_refuses_a_push_that_waits_for_it_and_can_be_repeated(
    queue: TaskQueue, session: TaskQueue, mover: TaskQueue, background: InBackground[Any]
) -> None:
    queue.create_topic("other")
    queue.push("work", ["before"])
    ended = deadlocks(queue.conn)
    token, number = begin_moving(mover)
    closed = mover.conn.execute("SELECT taskq.close_shared_tables('work', %s, '60 seconds')", (token,)).fetchone()
    assert closed == (True,)
    pushed = push_to_two_topics(queue, session, background)
    moved = mover.conn.execute("SELECT taskq.move_to_own_tables('work', %s, '60 seconds')", (token,)).fetchone()
    assert moved == (False,)
    mover.conn.execute("SELECT taskq.unlock_pushes(%s)", (number,))
    with pytest.raises(TaskQueueError, match="this topic is being moved to its own tables: repeat this"):
        pushed.result(60)
    session.conn.rollback()
    assert mover.own_partition("work")
    assert [info.identifier for info in everything(queue)] == ["before"]
    assert deadlocks(queue.conn) == ended
