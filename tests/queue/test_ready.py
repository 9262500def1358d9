"""Ready: the number of tasks that a poll would return. It claims and locks nothing."""

from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import (
    Condition,
    Decision,
    Insertion,
    NewTask,
    Order,
    Owner,
    Result,
    RetryPolicy,
    State,
    TaskQueue,
    TopicPolicy,
)
from tests.internals import hold_turns
from tests.queue.conftest import hurry, identifiers, numbered, states

pytestmark = pytest.mark.promise("`ready` counts what a poll would return, and takes and locks nothing")


def test_ready_counts_to_its_limit(queue: TaskQueue) -> None:
    queue.push("work", [NewTask(f"{number}", priority=number % 3 - 1) for number in range(9)])
    assert [queue.ready("work", limit) for limit in (0, 1, 2, 5, 9, 10, 2**40)] == [0, 1, 2, 5, 9, 9, 9]
    assert queue.ready("work") == 1
    assert queue.ready("work", -1) == 0


def test_ready_counts_the_tasks_that_a_poll_would_take(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", [NewTask("asleep", suspended=True), NewTask("later", delay=timedelta(hours=1)), "a", "b", "c"])
    first, second = queue.poll("work", owner, 2)
    queue.complete(owner, {first: Result.SUCCESS})
    assert queue.ready("work", 10) == 1
    assert len(queue.poll("work", owner, 10)) == 1
    assert queue.ready("work", 10) == 0
    assert second in queue.held(owner)


def test_ready_claims_no_task(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", ["a", "b"])
    assert queue.ready("work", 5) == 2
    assert states(queue) == [("a", State.READY), ("b", State.READY)]
    assert identifiers(queue.poll("work", owner, 5)) == ["a", "b"]


def test_ready_locks_nothing(queue: TaskQueue, owner: Owner, session: TaskQueue) -> None:
    queue.push("work", ["a", "b"])
    assert session.ready("work", 5) == 2
    assert hurry(queue).ready("work", 5) == 2
    assert identifiers(queue.poll("work", owner, 5)) == ["a", "b"]
    locks = queue.conn.execute(
        "SELECT mode FROM pg_locks WHERE pid = %s AND locktype IN ('relation', 'tuple') AND mode <> 'AccessShareLock'",
        (session.conn.info.backend_pid,),
    ).fetchall()
    assert locks == []


def test_ready_works_in_a_read_only_transaction(queue: TaskQueue, session: TaskQueue) -> None:
    queue.push("work", ["a"])
    session.conn.read_only = True
    assert session.ready("work", 5) == 1


def test_ready_skips_rows_that_another_open_transaction_polls(
    queue: TaskQueue, owner: Owner, session: TaskQueue
) -> None:
    queue.push("work", ["a", "b", "c"])
    session.poll("work", owner, 2)
    assert hurry(queue).ready("work", 5) == 1
    session.conn.commit()
    assert queue.ready("work", 5) == 1


def test_ready_skips_rows_polled_under_a_savepoint(queue: TaskQueue, owner: Owner, session: TaskQueue) -> None:
    queue.push("work", ["a", "b", "c"])
    session.conn.execute("SELECT")
    with session.conn.transaction():
        session.poll("work", owner)
        assert queue.ready("work", 5) == 2
        with session.conn.transaction():
            session.poll("work", owner)
            assert queue.ready("work", 5) == 1
        assert queue.ready("work", 5) == 1
    assert queue.ready("work", 5) == 1, "a released savepoint is still open work"


def test_ready_counts_rows_again_after_the_other_rolled_back(
    queue: TaskQueue, owner: Owner, session: TaskQueue
) -> None:
    queue.push("work", ["a", "b", "c"])
    session.poll("work", owner, 3)
    assert queue.ready("work", 5) == 0
    session.conn.rollback()
    assert queue.ready("work", 5) == 3


def test_ready_counts_rows_again_after_a_rollback_to_a_savepoint(
    queue: TaskQueue, owner: Owner, session: TaskQueue
) -> None:
    queue.push("work", ["a", "b", "c"])
    session.poll("work", owner)
    with session.conn.transaction(force_rollback=True):
        session.poll("work", owner)
        assert queue.ready("work", 5) == 1
    assert queue.ready("work", 5) == 2


@pytest.mark.parametrize("insertion", [Insertion.SUPERSEDE, Insertion.REPLACE, Insertion.DELETE])
def test_ready_skips_rows_that_an_open_push_displaces(
    queue: TaskQueue, session: TaskQueue, insertion: Insertion
) -> None:
    queue.push("work", ["a", "b"])
    session.push("work", ["a"], insertion)
    assert hurry(queue).ready("work", 5) == 1
    session.conn.commit()
    assert queue.ready("work", 5) == 2


@pytest.mark.parametrize("nested", [False, True], ids=["plain", "under a savepoint"])
def test_ready_counts_tasks_that_its_own_transaction_released(
    queue: TaskQueue, owner: Owner, session: TaskQueue, nested: bool
) -> None:
    """Only rows that *another* transaction holds are left out. A poll in this transaction would get these."""
    queue.push("work", ["a", "b"])
    session.conn.execute("SELECT")
    with session.conn.transaction() if nested else nullcontext():
        a, b = session.poll("work", owner, 2)
        session.complete(owner, {a: Decision(Result.SUSPENSION, delay=timedelta(0))})
        assert session.ready("work", 5) == 1
        session.release(owner)
        assert session.ready("work", 5) == 2
    assert session.ready("work", 5) == 2
    # The snoozed one is due since its snooze, the released one since its push.
    assert session.poll("work", session.register("next"), 5) == [b, a]


def test_ready_skips_rows_that_a_plain_lock_holds(queue: TaskQueue, session: TaskQueue) -> None:
    """SKIP LOCKED in a poll would skip them, too."""
    tasks = queue.push("work", ["a", "b", "c"])
    session.lock_tasks("work", [tasks[0].sequence], [State.READY])
    assert queue.ready("work", 5) == 2


def test_a_poll_after_ready_gets_that_many_tasks_whatever_changed_the_rows_before(
    queue: TaskQueue, owner: Owner, open_queue: Callable[[], TaskQueue]
) -> None:
    """Rows keep marks of ended transactions: committed, rolled back, nested."""
    queue.push("work", numbered(6))
    for ending in ("rollback", "release", "nested"):
        session = open_queue()
        session.poll("work", owner, 4)
        if ending == "nested":
            with session.conn.transaction(force_rollback=True):
                session.poll("work", owner, 1)
        if ending == "rollback":
            session.conn.rollback()
        else:
            session.conn.commit()
            queue.release(owner)
            owner = queue.register(owner.name)
        assert queue.ready("work", 10) == 6
    assert len(queue.poll("work", owner, 10)) == 6


SINGULAR = Condition.SINGULAR_BY_IDENTIFIER


@pytest.mark.parametrize("order", list(Order))
def test_ready_leaves_out_the_identifiers_whose_turn_another_open_poll_holds(
    queue: TaskQueue, owner: Owner, session: TaskQueue, order: Order
) -> None:
    """In either order, although `ready` looks at the first task of an identifier and a poll may hold the last one."""
    queue.push("work", ["foo", "foo", "foo", "bar", "bar"])
    assert len(session.poll("work", owner, 5, order, SINGULAR)) == 2
    queue.push("work", ["qux"])
    assert queue.ready("work", 10, SINGULAR) == 1
    assert identifiers(queue.poll("work", owner, 10, order, SINGULAR)) == ["qux"]
    session.conn.rollback()
    assert queue.ready("work", 10, SINGULAR) == 2


@pytest.mark.parametrize("nested", [False, True], ids=["plain", "under a savepoint"])
def test_ready_counts_the_next_turn_of_an_identifier_that_its_own_transaction_completed(
    queue: TaskQueue, owner: Owner, session: TaskQueue, nested: bool
) -> None:
    queue.push("work", ["a", "a"])
    session.conn.execute("SELECT")
    with session.conn.transaction() if nested else nullcontext():
        [first] = session.poll("work", owner, 5, Order.LAST_IN_FIRST_OUT, SINGULAR)
        session.complete(owner, {first: Result.SUCCESS})
        assert session.ready("work", 5, SINGULAR) == 1
    assert session.ready("work", 5, SINGULAR) == 1
    assert queue.ready("work", 5, SINGULAR) == 0
    session.conn.commit()
    assert queue.ready("work", 5, SINGULAR) == 1


def test_ready_leaves_out_retries_of_an_identifier_that_an_open_poll_holds(
    queue: TaskQueue, owner: Owner, session: TaskQueue
) -> None:
    """Retries behind a probe are counted by a query of their own."""
    policy = RetryPolicy(max_attempts=5, base=timedelta(0), probe=True)
    queue.alter_topic("work", TopicPolicy(retry=policy))
    queue.push("work", ["a"])
    queue.complete(owner, {queue.poll("work", owner)[0]: Result.FAILURE})
    assert queue.ready("work", 5, SINGULAR) == 1
    hold_turns(session.conn)
    assert queue.ready("work", 5, SINGULAR) == 0
    assert queue.poll("work", owner, 5, condition=SINGULAR) == []
    assert queue.ready("work", 5) == 1, "without a condition no identifier is held"


def test_identifiers_that_another_poll_examines_are_unclaimed_until_it_claims_them(
    queue: TaskQueue, owner: Owner, session: TaskQueue
) -> None:
    queue.push("work", ["a", "a"])
    hold_turns(session.conn)
    assert queue.ready("work", 5, SINGULAR) == 0
    assert queue.has_unclaimed("work", SINGULAR)
    session.conn.rollback()
    assert len(queue.poll("work", owner, 5, condition=SINGULAR)) == 1
    assert not queue.has_unclaimed("work", SINGULAR), "the second task waits for the first one"
    assert queue.has_unclaimed("work")
