"""Two transactions that need the same locks: none ends in a deadlock, or the error says to repeat the transaction.

Each test stops the sessions step by step: every session takes its first lock, and then asks for a lock of another one.
A third session sometimes holds a row, to stop a single call between two of its statements.
"""

import pickle
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import LiteralString
from uuid import UUID

import psycopg
import pytest

from airflow_provider_taskq.queue import (
    Deadlock,
    NotHeld,
    Owner,
    Result,
    State,
    TaskQueue,
    TaskQueueError,
    TopicPolicy,
)
from airflow_provider_taskq.queue.errors import is_transient, to_queue_error, translate_errors
from tests.queue.conftest import (
    InBackground,
    await_blocked,
    await_standstill,
    deadlocks,
    hurry,
    identifiers,
    states,
    task_in,
)

pytestmark = pytest.mark.promise("A call that raises an error has changed nothing")

HOUR = timedelta(hours=1)
OpenQueue = Callable[[], TaskQueue]


def alone(queue: TaskQueue) -> TaskQueue:
    """The session, with each call in a transaction of its own."""
    queue.conn.autocommit = True
    return queue


def value(queue: TaskQueue, call: LiteralString, *arguments: object) -> object:
    """The value that a call of a function returns."""
    row = queue.conn.execute(call, arguments).fetchone()
    assert row is not None
    return row[0]


def count(queue: TaskQueue, table: LiteralString) -> int:
    """The number of rows of a table."""
    return queue.conn.execute(f"SELECT FROM {table}".encode()).rowcount


# The error.


def wait_first(session: TaskQueue, second: TaskQueue) -> None:
    """Lets the server end the transaction of `second` if both wait for each other."""
    for each, timeout in ((session, "10min"), (second, "10ms")):
        each.conn.execute("SELECT set_config('deadlock_timeout', %s, false)", (timeout,))
        each.conn.commit()


def test_the_error_of_a_deadlock_names_what_collided_and_a_repetition_succeeds(
    queue: TaskQueue, session: TaskQueue, open_queue: OpenQueue, background: InBackground[bool]
) -> None:
    queue.create_topic("other")
    second = open_queue()
    wait_first(session, second)
    session.pause_topic("work")
    second.pause_topic("other")
    second.push("other", ["a"])
    waiting = background(lambda: session.pause_topic("other"))
    await_blocked(queue.conn, session, second)
    pid = session.conn.info.backend_pid
    with pytest.raises(Deadlock) as refusal:
        second.pause_topic("work")
    assert str(refusal.value) == (
        f"set_paused() and the transaction of session {pid} waited for each other's locks in topic (a deadlock): the"
        " server has ended this transaction, and nothing of it is stored. Repeat the whole transaction"
    )
    second.conn.rollback()
    assert waiting.result(60) is True
    session.conn.commit()
    assert states(queue, "other") == []
    assert [second.pause_topic("other"), second.pause_topic("work")] == [False, False]


def test_a_deadlock_is_a_transient_error_of_psycopg_and_of_the_queue_and_can_be_pickled() -> None:
    error = to_queue_error(psycopg.errors.DeadlockDetected("deadlock detected"))
    assert isinstance(error, Deadlock)
    assert isinstance(error, TaskQueueError)
    assert isinstance(error, psycopg.errors.DeadlockDetected)
    assert is_transient(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own bytes
    assert str(error).startswith("this statement and another transaction waited for each other's locks (a deadlock)")
    with pytest.raises(Deadlock) as raised, translate_errors():
        raise error
    assert raised.value is error


def test_a_decision_on_the_same_tasks_in_another_order_ends_in_a_deadlock_that_changes_nothing(
    queue: TaskQueue, owner: Owner, session: TaskQueue, open_queue: OpenQueue, background: InBackground[None]
) -> None:
    """Two programs that work under one owner decide on the same tasks: the first one wins."""
    first, second = (task_in(queue, owner, State.ACTIVE, name) for name in "ab")
    other = open_queue()
    wait_first(session, other)
    session.complete(owner, {first: Result.SUCCESS})
    other.complete(owner, {second: Result.FAILURE})
    waiting = background(lambda: session.complete(owner, {second: Result.SUCCESS}))
    await_blocked(queue.conn, session, other)
    with pytest.raises(Deadlock, match=r"complete\(\) and the transaction of session \d+ waited .* in \w+ "):
        other.complete(owner, {first: Result.FAILURE})
    other.conn.rollback()
    waiting.result(60)
    session.conn.commit()
    assert states(queue) == [("a", State.SUCCEEDED), ("b", State.SUCCEEDED)]
    with pytest.raises(NotHeld):
        other.complete(owner, {second: Result.FAILURE})


# Stages.

STAGED = ("taskq.staged", "taskq.staged_task", "taskq.staged_junction")
ABANDON: LiteralString = "SELECT taskq.abandon_stage(%s)"
PRUNE: LiteralString = "SELECT taskq.prune_stages()"


def stage_of(queue: TaskQueue, owner: Owner, sequence: int) -> UUID:
    """A stage with rows of a lost attempt 0 and of a successful attempt 1."""
    stage = value(queue, "SELECT taskq.open_stage(%s, %s)", owner.name, owner.fence)
    assert isinstance(stage, UUID)
    for attempt in (0, 1):
        queue.conn.execute(
            "INSERT INTO taskq.staged (stage, part, attempt, sequence, result) VALUES (%s, 0, %s, %s, 3)",
            (stage, attempt, sequence),
        )
        queue.conn.execute(
            "INSERT INTO taskq.staged_task (stage, part, attempt, place, parent, topic, identifier)"
            " VALUES (%s, 0, %s, 0, %s, 'work', 'next')",
            (stage, attempt, sequence),
        )
        queue.conn.execute(
            "INSERT INTO taskq.staged_junction (stage, part, attempt, parent, topic, groups, junction)"
            " VALUES (%s, 0, %s, %s, 'work', '[[\"a\"]]', 'SINGULAR')",
            (stage, attempt, sequence),
        )
    return stage


def complete_stage(queue: TaskQueue, owner: Owner, stage: UUID) -> object:
    """Commits attempt 1 of a stage."""
    return value(queue, "SELECT taskq.complete_staged(%s, %s, %s, '{0}', '{1}', '{1}')", owner.name, owner.fence, stage)


def test_pruning_and_abandoning_a_stage_remove_it_once_and_do_not_deadlock(
    queue: TaskQueue, owner: Owner, session: TaskQueue, open_queue: OpenQueue, background: InBackground[object]
) -> None:
    pruning, abandoning, ended = alone(open_queue()), alone(open_queue()), deadlocks(queue.conn)
    stage = stage_of(queue, owner, task_in(queue, owner, State.ACTIVE).sequence)
    queue.release(owner)
    session.conn.execute("LOCK TABLE taskq.staged_task IN SHARE MODE")  # which the pruning needs in the middle
    pruned = background(lambda: value(pruning, PRUNE))
    await_blocked(queue.conn, pruning, session)
    abandoned = background(lambda: value(abandoning, ABANDON, stage))
    await_blocked(queue.conn, abandoning, pruning)
    session.conn.rollback()
    assert (pruned.result(60), abandoned.result(60)) == (1, 0)
    assert [count(queue, table) for table in STAGED] == [0, 0, 0]
    assert states(queue) == [("a", State.READY)]
    assert deadlocks(queue.conn) == ended


# Own tables for a topic.


@pytest.fixture
def tables(queue: TaskQueue) -> Iterator[None]:
    """At the end no topic has its own tables."""
    yield
    queue.conn.execute("RESET ALL")
    for topic in queue.topics():
        queue.shared_partition(topic, most=10**9)
        queue.drop_topic(topic)
    queue.drop_vacant_partitions()


CHANGES: dict[str, Callable[[TaskQueue], object]] = {
    "pause": lambda queue: queue.pause_topic("work"),
    "alter": lambda queue: queue.alter_topic("work", TopicPolicy()),
}
STEPS: dict[str, LiteralString] = {
    "close": "SELECT taskq.close_shared_tables('work', %s, '60 seconds')",
    "move": "SELECT taskq.move_to_own_tables('work', %s, '60 seconds')",
    "undo": "SELECT taskq.undo_partition_move('work', %s, '60 seconds')",
}


def begin_moving(mover: TaskQueue, step: str) -> object:
    """Carries a move of `work` out up to a step, and returns its token. Pushes to `work` wait for this session."""
    token = value(mover, "SELECT taskq.begin_partition_move('work', '1 second')")
    value(mover, "SELECT taskq.create_own_tables('work', %s, '1 second')", token)
    value(mover, "SELECT taskq.lock_pushes('work', '1 second')")
    if step != "close":
        assert value(mover, STEPS["close"], token) is True
    return token


def is_paused(queue: TaskQueue) -> object:
    return value(queue, "SELECT (taskq.policy('work')).paused")


def unlock_pushes(mover: TaskQueue) -> None:
    assert value(mover, "SELECT taskq.unlock_pushes((taskq.policy('work')).topic_id)") is True


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("step", STEPS)
def test_a_step_of_a_move_keeps_no_table_locked_while_a_change_of_the_topic_is_open(
    queue: TaskQueue,
    owner: Owner,
    session: TaskQueue,
    open_queue: OpenQueue,
    background: InBackground[object],
    step: str,
    change: str,
) -> None:
    """The step needs the topic's row, and the transaction then needs the tables."""
    queue.create_topic("other")
    queue.push("other", ["x"])
    queue.push("work", ["a"])
    mover, ended = alone(open_queue()), deadlocks(queue.conn)
    token = begin_moving(mover, step)
    CHANGES[change](session)
    stepped = background(lambda: value(mover, STEPS[step], token))
    await_standstill(queue.conn, mover)
    assert identifiers(session.poll("other", owner)) == ["x"]
    assert identifiers(hurry(queue).push("other", ["y"])) == ["y"]
    session.conn.commit()
    assert stepped.result(60) is True
    unlock_pushes(mover)
    assert mover.own_partition("work") is (step != "move")
    assert (states(queue), is_paused(queue)) == ([("a", State.READY)], change == "pause")
    assert deadlocks(queue.conn) == ended


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("step", STEPS)
def test_a_step_of_a_move_gives_way_to_a_transaction_that_changed_the_topic_and_waits_to_push(
    queue: TaskQueue,
    session: TaskQueue,
    open_queue: OpenQueue,
    background: InBackground[object],
    step: str,
    change: str,
) -> None:
    """The step needs the topic's row, and the transaction the lock of pushes, which the session of the move holds."""
    mover, ended = alone(open_queue()), deadlocks(queue.conn)
    token = begin_moving(mover, step)
    CHANGES[change](session)
    stepped = background(lambda: value(mover, STEPS[step], token))
    await_standstill(queue.conn, mover)
    pushed = background(lambda: session.push("work", ["a"]))
    if step == "undo":
        with pytest.raises(
            psycopg.Error, match="uses the tables of the queue waits for this one: repeat this after its end"
        ):
            stepped.result(60)
    else:
        assert stepped.result(60) is False
    unlock_pushes(mover)
    if step == "close":
        pushed.result(60)
        session.conn.commit()
    else:  # the shared tables are closed
        with pytest.raises(TaskQueueError, match="this topic is being moved to its own tables: repeat this"):
            pushed.result(60)
        session.conn.rollback()
    assert mover.own_partition("work") is True
    assert states(queue) == ([("a", State.READY)] if step == "close" else [])
    assert deadlocks(queue.conn) == ended


@pytest.mark.usefixtures("tables")
def test_a_move_gives_way_to_a_transaction_that_removed_a_task_of_the_topic_and_waits_to_push(
    queue: TaskQueue, session: TaskQueue, open_queue: OpenQueue, background: InBackground[object]
) -> None:
    """The move needs all rows of the topic, and the transaction the lock of pushes."""
    queue.push("work", ["a", "b"])
    mover, ended = alone(open_queue()), deadlocks(queue.conn)
    token = begin_moving(mover, "move")
    assert session.purge("work", state=State.READY, size=1) == 1
    moved = background(lambda: value(mover, STEPS["move"], token))
    pushed = background(lambda: session.push("work", ["c"]))
    assert moved.result(60) is False
    unlock_pushes(mover)
    with pytest.raises(TaskQueueError, match="this topic is being moved to its own tables: repeat this"):
        pushed.result(60)
    session.conn.rollback()
    assert mover.own_partition("work") is True
    assert states(queue) == [("a", State.READY), ("b", State.READY)]
    assert deadlocks(queue.conn) == ended


@pytest.mark.usefixtures("tables")
def test_a_move_gives_up_and_names_the_session_whose_change_of_the_topic_stays_open(
    queue: TaskQueue, session: TaskQueue, open_queue: OpenQueue
) -> None:
    session.pause_topic("work")
    with pytest.raises(TaskQueueError, match=f"session {session.conn.info.backend_pid} has changed topic 'work'"):
        alone(open_queue()).own_partition("work", timedelta(milliseconds=300))
    session.conn.rollback()
    assert is_paused(queue) is False
    assert queue.own_partition("work")
