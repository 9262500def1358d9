"""Fronts: polls begin behind the tasks that were claimed before, and pass no task (sql/internal/fronts.sql)."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from airflow_provider_taskq.queue import (
    Condition,
    Decision,
    NewTask,
    Order,
    Owner,
    Result,
    RetryPolicy,
    State,
    Task,
    TaskQueue,
    TopicPolicy,
    connect,
)
from tests.internals import advance_fronts, fronts, interrupted, passed_tasks, set_fronts_ahead
from tests.queue.conftest import await_lock_wait, identifiers, lapse, pass_time, task_in
from tests.queue.explained import explain

pytestmark = pytest.mark.promise("A poll passes no due task, however transactions interleave")

HOUR = timedelta(hours=1)
AT_ONCE = timedelta(0)
LIFO = Order.LAST_IN_FIRST_OUT
RETRIES = TopicPolicy(RetryPolicy(max_attempts=9, base=AT_ONCE))


def advance(queue: TaskQueue, order: Order = Order.FIRST_IN_FIRST_OUT) -> None:
    """Advances the fronts as far as possible. A poll does this for some priorities, at random."""
    advance_fronts(queue.conn, backwards=order is LIFO)


def front(queue: TaskQueue, priority: int = 0) -> tuple[datetime, int]:
    """The place of the front that counts."""
    return next((moment, sequence) for each, moment, sequence in reversed(fronts(queue.conn)) if each == priority)


def drain(queue: TaskQueue, owner: Owner, order: Order = Order.FIRST_IN_FIRST_OUT) -> list[str]:
    """Polls and completes all tasks, five at a time, and returns their identifiers."""
    done: list[str] = []
    while tasks := queue.poll("work", owner, 5, order):
        queue.complete(owner, dict.fromkeys(tasks, Result.SUCCESS))
        done += identifiers(tasks)
    return done


# No task is passed


def released(queue: TaskQueue, owner: Owner, _task: Task) -> None:
    queue.release(owner)


def released_alone(queue: TaskQueue, owner: Owner, task: Task) -> None:
    queue.release_tasks(owner, [task])


def expired(queue: TaskQueue, owner: Owner, _task: Task) -> None:
    lapse(queue, owner)
    queue.expire()


def failed(queue: TaskQueue, owner: Owner, task: Task) -> None:
    queue.complete(owner, {task: Decision(Result.FAILURE, error="down")})


def failed_within_its_ttl(queue: TaskQueue, owner: Owner, task: Task) -> None:
    queue.alter_topic("work", TopicPolicy(ttl=HOUR))
    failed(queue, owner, task)


def failed_before_a_probe(queue: TaskQueue, owner: Owner, task: Task) -> None:
    queue.alter_topic("work", TopicPolicy(RetryPolicy(max_attempts=9, base=AT_ONCE, probe=True)))
    failed(queue, owner, task)


def snoozed(queue: TaskQueue, owner: Owner, task: Task) -> None:
    queue.complete(owner, {task: Decision(Result.SUSPENSION, delay=-HOUR)})


def reset(queue: TaskQueue, owner: Owner, task: Task) -> None:
    queue.complete(owner, {task: Result.SUCCESS})
    queue.revive("work", sequences=[task.sequence])


def recreated(queue: TaskQueue, owner: Owner, task: Task) -> None:
    queue.complete(owner, {task: Result.SUCCESS})
    queue.revive("work", revival="APPEND", sequences=[task.sequence])


def joined(queue: TaskQueue, owner: Owner, task: Task) -> None:
    queue.complete(owner, {task: Result.SUSPENSION})
    queue.junction("work", [[task.identifier]])


def offered_again(queue: TaskQueue, owner: Owner, task: Task) -> None:
    queue.release(owner)
    queue.offer("work", task.identifier, {"newer": True})


def made_urgent(queue: TaskQueue, owner: Owner, task: Task) -> None:
    queue.release(owner)
    queue.set_priority("work", [task.sequence], 7)


def paused_and_resumed(queue: TaskQueue, owner: Owner, task: Task) -> None:
    queue.release(owner)
    queue.pause_task("work", task.sequence)
    advance(queue)
    queue.resume_task("work", task.sequence)


def given_a_time(queue: TaskQueue, owner: Owner, task: Task) -> None:
    queue.release(owner)
    queue.set_due("work", task.sequence, None)
    queue.set_attempts("work", task.sequence, 1)


def taken_over(queue: TaskQueue, owner: Owner, _task: Task) -> None:
    queue.register(owner.name)
    queue.release(queue.register(owner.name))


WAYS_BACK: tuple[Callable[[TaskQueue, Owner, Task], None], ...] = (
    released,
    released_alone,
    expired,
    failed,
    failed_within_its_ttl,
    failed_before_a_probe,
    snoozed,
    reset,
    recreated,
    joined,
    offered_again,
    made_urgent,
    paused_and_resumed,
    given_a_time,
    taken_over,
)


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("condition", [Condition.NONE, Condition.SINGULAR_BY_IDENTIFIER])
@pytest.mark.parametrize("way", WAYS_BACK, ids=lambda way: way.__name__)
def test_a_task_that_becomes_ready_again_is_polled_however_far_the_front_has_advanced(
    queue: TaskQueue, way: Callable[[TaskQueue, Owner, Task], None], condition: Condition, order: Order
) -> None:
    queue.alter_topic("work", RETRIES)
    owner = queue.register("first")
    task = task_in(queue, owner, State.ACTIVE)
    advance(queue, order)
    queue.push("work", ["later"])
    way(queue, owner, task)
    assert passed_tasks(queue.conn) == []
    advance(queue, order)
    assert passed_tasks(queue.conn) == []
    assert queue.ready("work", 9, condition) == 2
    polled = queue.poll("work", queue.register("second"), 9, order, condition)
    assert sorted(identifiers(polled)) == ["a", "later"]


@pytest.mark.parametrize("order", list(Order))
def test_a_front_stays_before_an_open_push(
    queue: TaskQueue, owner: Owner, open_queue: Callable[[], TaskQueue], order: Order
) -> None:
    queue.push("work", ["earlier"])
    pushing = open_queue()
    pushing.push("work", ["open"])
    queue.push("work", ["later"])
    assert len(drain(queue, owner, order)) == 2
    advance(queue, order)
    pushing.conn.commit()
    assert passed_tasks(queue.conn) == []
    assert drain(queue, owner, order) == ["open"]


def test_a_front_stays_before_a_push_that_has_read_its_time_and_stored_nothing_yet(
    queue: TaskQueue,
    owner: Owner,
    open_queue: Callable[[], TaskQueue],
    background: Callable[[Callable[[], object]], "Future[object]"],
) -> None:
    holding, pushing = open_queue(), open_queue()
    holding.conn.execute("SELECT pg_advisory_xact_lock(4711)")
    with interrupted(queue.conn, "push", "IF NEW.identifier = 'b' THEN PERFORM pg_advisory_xact_lock(4711); END IF;"):
        done = background(lambda: pushing.push("work", ["b"]))
        await_lock_wait(queue.conn, pushing)
        queue.push("work", ["a"])
        assert drain(queue, owner) == ["a"]
        advance(queue)
        holding.conn.rollback()
        done.result(300)
        pushing.conn.commit()
    assert passed_tasks(queue.conn) == []
    assert drain(queue, owner) == ["b"]


def test_a_front_stays_before_an_open_retry(
    queue: TaskQueue, owner: Owner, open_queue: Callable[[], TaskQueue]
) -> None:
    queue.alter_topic("work", RETRIES)
    task = task_in(queue, owner, State.ACTIVE)
    completing = open_queue()
    failed(completing, owner, task)
    queue.push("work", ["later"])
    drain(queue, queue.register("other"))
    advance(queue)
    completing.conn.commit()
    assert passed_tasks(queue.conn) == []
    assert drain(queue, owner) == ["a"]


def test_a_retry_is_announced_again_after_a_rollback_to_a_savepoint(
    queue: TaskQueue, owner: Owner, open_queue: Callable[[], TaskQueue]
) -> None:
    queue.alter_topic("work", RETRIES)
    task = task_in(queue, owner, State.ACTIVE)
    completing = open_queue()
    with completing.conn.transaction(force_rollback=True):
        failed(completing, owner, task)
    failed(completing, owner, task)
    queue.push("work", ["later"])
    drain(queue, queue.register("other"))
    advance(queue)
    completing.conn.commit()
    assert passed_tasks(queue.conn) == []
    assert drain(queue, owner) == ["a"]


def test_a_front_stays_before_a_claim_that_is_rolled_back(
    queue: TaskQueue, owner: Owner, open_queue: Callable[[], TaskQueue]
) -> None:
    queue.push("work", ["claimed", "later"])
    polling = open_queue()
    polling.poll("work", owner)
    assert drain(queue, queue.register("other")) == ["later"]
    advance(queue)
    polling.conn.rollback()
    assert passed_tasks(queue.conn) == []
    assert drain(queue, owner) == ["claimed"]


@pytest.mark.parametrize(
    "late", [NewTask("a", delay=-HOUR), NewTask("a", available_at=datetime(2001, 1, 1, tzinfo=UTC))]
)
def test_a_task_that_was_due_before_its_push_comes_first(queue: TaskQueue, owner: Owner, late: NewTask) -> None:
    queue.push("work", ["done"])
    drain(queue, owner)
    advance(queue)
    queue.push("work", ["b"])
    queue.push("work", [late])
    assert drain(queue, owner) == ["a", "b"]


def test_a_task_of_a_new_priority_is_polled_also_if_two_open_transactions_use_it_first(
    queue: TaskQueue, owner: Owner, open_queue: Callable[[], TaskQueue]
) -> None:
    first, second = open_queue(), open_queue()
    first.push("work", [NewTask("a", priority=-3)])
    second.push("work", [NewTask("b", priority=-3)])
    first.conn.rollback()
    second.conn.commit()
    queue.push("work", [NewTask("c", priority=4)])
    assert drain(queue, owner) == ["c", "b"]


def test_a_task_is_polled_although_the_clock_of_the_server_was_set_back(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", ["zero"])
    drain(queue, owner)
    advance(queue)
    set_fronts_ahead(queue.conn, HOUR)
    queue.push("work", ["one"])
    queue.push("work", ["two", "three"])
    assert queue.ready("work", 9) == 3
    assert drain(queue, owner) == ["one", "two", "three"]


def test_a_retry_is_polled_although_the_clock_of_the_server_was_set_back(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", RETRIES)
    task = task_in(queue, owner, State.ACTIVE)
    advance(queue)
    pass_time(queue, -HOUR)
    failed(queue, owner, task)
    assert passed_tasks(queue.conn) == []
    assert drain(queue, owner) == ["a"]


def test_an_open_push_is_polled_although_the_clock_of_the_server_was_set_back_before_it(
    queue: TaskQueue, owner: Owner, open_queue: Callable[[], TaskQueue]
) -> None:
    queue.push("work", ["a"])
    pass_time(queue, -HOUR)
    pushing = open_queue()
    pushing.push("work", ["b"])
    pass_time(queue, HOUR)  # what was pushed before the change of the clock is due
    assert drain(queue, owner) == ["a"]
    advance(queue)
    pushing.conn.commit()
    assert passed_tasks(queue.conn) == []
    assert drain(queue, owner) == ["b"]


def test_a_front_stays_before_an_open_push_that_began_during_a_recreation(
    queue: TaskQueue,
    owner: Owner,
    open_queue: Callable[[], TaskQueue],
    background: Callable[[Callable[[], object]], "Future[object]"],
) -> None:
    """The recreation draws its sequence before the push, and its task is in the log before the task of the push."""
    task = task_in(queue, owner, State.SUSPENDED)
    holding, recreating, pushing = open_queue(), open_queue(), open_queue()
    holding.conn.execute("SELECT pg_advisory_xact_lock(4711)")
    with interrupted(queue.conn, "push", "IF NEW.identifier = 'a' THEN PERFORM pg_advisory_xact_lock(4711); END IF;"):
        done = background(lambda: recreating.revive("work", revival="APPEND", sequences=[task.sequence]))
        await_lock_wait(queue.conn, recreating)
        pushing.push("work", ["b"])
        holding.conn.rollback()
        done.result(300)
        recreating.conn.commit()
        assert drain(queue, owner) == ["a"]
        advance(queue)
        pushing.conn.commit()
        assert passed_tasks(queue.conn) == []
        assert drain(queue, owner) == ["b"]


@pytest.mark.parametrize("condition", [Condition.NONE, Condition.SINGULAR_BY_IDENTIFIER])
def test_tasks_on_both_sides_of_a_gap_come_in_the_order_of_the_poll(
    queue: TaskQueue, owner: Owner, condition: Condition
) -> None:
    """Some tasks come back into the gap, some lie before it, and some arrive after it."""
    queue.push("work", ["done"])
    drain(queue, owner)
    for name in "abcdefgh":
        queue.push("work", [name])
    advance(queue)
    held = queue.poll("work", owner, 5, LIFO)
    assert identifiers(held) == ["h", "g", "f", "e", "d"]
    advance(queue, LIFO)
    queue.release_tasks(owner, [held[0], held[3]])
    queue.push("work", ["i", "j"])
    queue.push("work", [NewTask("old", delay=-HOUR)])
    queue.push("work", [NewTask("oldest", delay=-2 * HOUR)])
    assert passed_tasks(queue.conn) == []
    assert queue.ready("work", 20, condition) == 9
    found = queue.poll("work", queue.register("other"), 20, LIFO, condition)
    assert identifiers(found) == ["j", "i", "h", "e", "c", "b", "a", "old", "oldest"]


def test_a_poll_returns_a_task_once_if_the_front_lies_in_the_gap(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", [NewTask(name, delay=-HOUR) for name in "abcdefgh"])
    other = queue.register("other")
    queue.poll("work", other, 5, LIFO)
    advance(queue, LIFO)
    queue.poll("work", owner, 3)
    queue.release(other)
    third = queue.register("third")
    queue.poll("work", third, 2)
    advance(queue)
    queue.release(third)
    assert passed_tasks(queue.conn) == []
    assert identifiers(queue.poll("work", owner, 10, LIFO)) == ["h", "g", "f", "e", "d"]


def test_a_poll_returns_a_task_once_after_an_open_push_has_held_the_front_back(
    queue: TaskQueue, owner: Owner, open_queue: Callable[[], TaskQueue]
) -> None:
    queue.push("work", ["a", NewTask("b", delay=HOUR), NewTask("c", delay=2 * HOUR)])
    pass_time(queue, 10 * HOUR)
    assert identifiers(queue.poll("work", owner, 1, LIFO)) == ["c"]
    advance(queue, LIFO)
    pushing = open_queue()
    pushing.push("work", ["d"])
    advance(queue, LIFO)
    pushing.conn.rollback()
    advance(queue, LIFO)
    assert identifiers(queue.poll("work", owner, 10, LIFO)) == ["b", "a"]


def test_an_empty_priority_costs_a_poll_no_query_of_its_own(own_queue: TaskQueue) -> None:
    own_queue.push("work", [NewTask(str(number), priority=number) for number in range(-50, 50)])
    owner = own_queue.register("me")
    drain(own_queue, owner)
    advance(own_queue)
    polled = explain(own_queue.conn, lambda: own_queue.poll("work", owner, 5))
    assert polled.scans < 5 * 100
    assert polled.pages < 15 * 100


def test_a_poll_above_read_committed_moves_no_front(queue: TaskQueue, owner: Owner, dsn: str) -> None:
    queue.push("work", [str(number) for number in range(2000)])
    before = front(queue)
    with connect(dsn) as conn:
        conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        TaskQueue(conn).poll("work", owner, 1000)
    assert front(queue) == before
    queue.poll("work", owner, 1000)
    assert front(queue) != before


def test_maintain_removes_the_rows_of_fronts_that_no_longer_count(queue: TaskQueue, owner: Owner) -> None:
    for name in "abc":
        queue.push("work", [name, NewTask(name, priority=5)])
        drain(queue, owner)
        advance(queue)
    before = [front(queue), front(queue, 5)]
    queue.maintain()
    assert len(fronts(queue.conn)) == 2
    assert [front(queue), front(queue, 5)] == before


def test_a_dropped_topic_leaves_no_front(queue: TaskQueue) -> None:
    queue.push("work", ["a"])
    queue.drop_topic("work")
    assert fronts(queue.conn) == []


# The work of a call does not grow


@contextmanager
def long_snapshot(dsn: str) -> Iterator[None]:
    """A transaction whose snapshot keeps vacuum from removing anything."""
    with connect(dsn) as conn:
        conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        conn.execute("SELECT count(*) FROM taskq.migrations")
        yield


Round = Callable[[TaskQueue, Owner], object]


def by_hundred(queue: TaskQueue, owner: Owner) -> object:
    return queue.poll("work", owner, 100)


def by_one(queue: TaskQueue, owner: Owner) -> object:
    return queue.poll("work", owner)


def last_first(queue: TaskQueue, owner: Owner) -> object:
    return queue.poll("work", owner, 100, LIFO)


def one_per_identifier(queue: TaskQueue, owner: Owner) -> object:
    return queue.poll("work", owner, 100, condition=Condition.SINGULAR_BY_IDENTIFIER)


def counting(queue: TaskQueue, _owner: Owner) -> object:
    return queue.ready("work", 10)


def watching(queue: TaskQueue, _owner: Owner) -> object:
    row = queue.conn.execute(
        "SELECT count(*) FROM taskq.watch_tasks('{work}', '{5}', '{NONE}', '{true}', '{}', '{}')"
    ).fetchone()
    assert row == (1,)
    return row


def prepare_drain(queue: TaskQueue, count: int, kind: str, number: int) -> None:
    names = (NewTask(f"{number}-{each}", priority=each % 3 if kind == "priorities" else 0) for each in range(count))
    queue.push("work", list(names))


@pytest.mark.parametrize("kind", ["one priority", "priorities", "retries"])
@pytest.mark.parametrize(
    "call",
    [by_one, by_hundred, last_first, one_per_identifier, counting, watching],
    ids=lambda call: call.__name__,
)
def test_a_call_reads_no_more_pages_while_a_long_transaction_keeps_the_entries_of_claimed_tasks(
    own_queue: TaskQueue, own_dsn: str, call: Round, kind: str
) -> None:
    """Each round drains 2,000 tasks. Without fronts, the calls of the last round read 10,000 dead entries."""
    queue, owner = own_queue, own_queue.register("measured", HOUR)
    queue.alter_topic("work", RETRIES)
    order = LIFO if call is last_first else Order.FIRST_IN_FIRST_OUT

    def measured() -> int:
        pages = []
        for _ in range(8):
            pages.append(explain(queue.conn, lambda: call(queue, owner)).pages)
            drain_some(queue, owner, order, failing=kind == "retries")
        return sorted(pages)[len(pages) // 2]

    prepare_drain(queue, 2_000, kind, 0)
    with long_snapshot(own_dsn):
        first = measured()
        for number in range(1, 6):
            prepare_drain(queue, 2_000, kind, number)
            while drain_some(queue, owner, order, failing=kind == "retries"):
                pass
        prepare_drain(queue, 2_000, kind, 9)
        assert measured() < 2 * first + 100


def drain_some(queue: TaskQueue, owner: Owner, order: Order, *, failing: bool) -> int:
    """Polls a hundred tasks and completes them, and those held before. With `failing` a tenth fails once."""
    queue.poll("work", owner, 100, order)
    tasks = queue.held(owner)
    queue.complete(
        owner,
        {
            task: Decision(Result.FAILURE, error="down")
            if failing and not number % 10 and task.attempt == 1
            else Decision(Result.SUCCESS)
            for number, task in enumerate(tasks)
        },
    )
    return len(tasks)
