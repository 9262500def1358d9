"""Poll and ready: which tasks are handed out, in which order, and how many. Races are in polls.spec and ready.spec."""

from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_taskq.queue import (
    Condition,
    Decision,
    NewTask,
    Order,
    Owner,
    Result,
    RetryPolicy,
    Task,
    TaskQueue,
    TopicPolicy,
)
from tests.internals import hold_turns, make_due
from tests.queue.conftest import identifiers, known, lapse

pytestmark = pytest.mark.promise("Tasks are handed out by priority, then due time, then sequence")

FIFO, LIFO = Order.FIRST_IN_FIRST_OUT, Order.LAST_IN_FIRST_OUT
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)

# Due by their own times, some equal; the last is not due.
MIXED = [
    NewTask("low", priority=-100),
    NewTask("x", available_at=LONG_AGO + 3 * DAY),
    NewTask("y", available_at=LONG_AGO + DAY),
    NewTask("z", available_at=LONG_AGO + 3 * DAY),
    NewTask("high old", available_at=LONG_AGO, priority=100),
    NewTask("plain"),
    NewTask("high new", available_at=LONG_AGO + DAY, priority=100),
    NewTask("later", delay=timedelta(hours=1), priority=100),
    NewTask("middle", priority=1),
]


@pytest.mark.parametrize("size", [1, 4, 100])
@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (FIFO, ["high old", "high new", "middle", "y", "x", "z", "plain", "low"]),
        (LIFO, ["high new", "high old", "middle", "plain", "z", "x", "y", "low"]),
    ],
    ids=["first in first out", "last in first out"],
)
def test_due_tasks_are_handed_out_by_priority_then_due_time_then_sequence(
    queue: TaskQueue, owner: Owner, order: Order, expected: list[str], size: int
) -> None:
    queue.push("work", MIXED)
    out: list[str] = []
    while tasks := queue.poll("work", owner, size, order):
        assert len(tasks) <= size
        out += identifiers(tasks)
    assert out == expected


@pytest.mark.promise("A task that is reset, released or redelivered gets its old place back")
@pytest.mark.parametrize("given_back", ["release", "expire", "snooze then release", "retry then expire"])
def test_a_task_given_back_has_its_old_place(queue: TaskQueue, owner: Owner, given_back: str) -> None:
    queue.alter_topic("work", TopicPolicy(RetryPolicy(max_attempts=9)))
    queue.push("work", ["a", NewTask("first", available_at=LONG_AGO), "b"])
    [task] = queue.poll("work", owner)
    if "then" in given_back:
        delay = timedelta(hours=1)
        snooze = Decision(Result.SUSPENSION, delay=delay) if "snooze" in given_back else Decision(Result.FAILURE)
        queue.complete(owner, {task: snooze})
        make_due(queue.conn, sequences=[task.sequence])
        queue.poll("work", owner, 2)
        assert task in queue.poll("work", owner) + queue.held(owner)
    if given_back.endswith("release"):
        queue.release(owner)
    else:
        lapse(queue, owner)
        queue.expire()
    assert known(queue, task).available_at == LONG_AGO
    found: list[Task] = []
    owner = queue.register("next")
    while polled := queue.poll("work", owner, 3):  # a crashed task is polled without the others
        queue.complete(owner, dict.fromkeys(polled, Result.SUCCESS))
        found += polled
    assert identifiers(found) == ["first", "a", "b"]


# Ready


@pytest.mark.promise("`ready` counts what a poll would return, and takes and locks nothing")
def test_ready_counts_to_its_limit_and_a_poll_takes_no_more_than_there_is(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", [NewTask(f"{number}", priority=number % 3 - 1) for number in range(9)])
    assert [queue.ready("work", limit) for limit in (0, 1, 2, 5, 9, 10, 2**40)] == [0, 1, 2, 5, 9, 9, 9]
    assert queue.ready("work") == 1
    assert queue.ready("work", -1) == 0
    assert [len(queue.poll("work", owner, size)) for size in (0, -1, 2**40)] == [0, 0, 9]


SINGULAR = Condition.SINGULAR_BY_IDENTIFIER


@pytest.mark.promise("`ready` counts what a poll would return, and takes and locks nothing")
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


@pytest.mark.promise("`ready` counts what a poll would return, and takes and locks nothing")
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
