"""Poll: which tasks are handed out, in which order, at most how many, and never waiting."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from airflow_provider_taskq.queue import (
    Decision,
    LeaseLost,
    NewTask,
    Order,
    Owner,
    Result,
    RetryPolicy,
    State,
    TaskQueue,
    TaskQueueError,
    TopicPolicy,
    connect,
)
from tests.internals import make_due
from tests.queue.conftest import hurry, identifiers, known, lapse, numbered, pass_time, states

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
FORCED_PLANS = {
    "as it is": "SELECT",
    "sequential scans": "SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off",
    "bitmaps": "SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_seqscan = off",
    "nested loops": "SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_material = off",
    "merge joins": "SET enable_hashjoin = off; SET enable_nestloop = off",
    "generic plans": "SET plan_cache_mode = force_generic_plan",
    "parallel": "SELECT set_config(name, 'on', false) FROM pg_settings"  # it has another name before PostgreSQL 16
    " WHERE name IN ('debug_parallel_query', 'force_parallel_mode');"
    " SET parallel_setup_cost = 0; SET min_parallel_table_scan_size = 0",
}


def test_a_poll_makes_tasks_active_and_counts_the_attempt(queue: TaskQueue, owner: Owner) -> None:
    [pushed] = queue.push("work", [NewTask("a", {"x": 1}, "ref")])
    [task] = queue.poll("work", owner)
    assert task == pushed
    assert (task.payload, task.reference, task.attempt, task.redelivered) == ({"x": 1}, "ref", 1, False)
    info = known(queue, task)
    assert (info.state, info.status, info.owner) == (State.ACTIVE, "running", owner.name)


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


def test_tasks_of_one_producer_are_handed_out_in_the_order_of_their_push(
    queue: TaskQueue, owner: Owner, session: TaskQueue
) -> None:
    for number in range(5):
        session.push("work", [f"{number}a", f"{number}b"])
        session.push_stream("work", [f"{number}c"])
    session.conn.commit()
    out = identifiers(queue.poll("work", owner, 100))
    assert out == [f"{number}{letter}" for number in range(5) for letter in "abc"]


def test_a_task_is_handed_out_once_it_is_due(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", [NewTask("a", delay=timedelta(minutes=10))])
    pass_time(queue, timedelta(minutes=9, seconds=50))
    assert queue.poll("work", owner) == []
    assert queue.ready("work") == 0
    pass_time(queue, timedelta(seconds=10))
    assert queue.ready("work") == 1
    assert identifiers(queue.poll("work", owner)) == ["a"]


def test_a_delayed_task_is_due_after_one_that_was_due_before(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", [NewTask("late", delay=timedelta(minutes=1)), "early"])
    pass_time(queue, timedelta(minutes=2))
    assert identifiers(queue.poll("work", owner, 2)) == ["early", "late"]


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
    assert identifiers(queue.poll("work", queue.register("next"), 3)) == ["first", "a", "b"]


@pytest.mark.promise("A poll never takes more tasks than requested")
@pytest.mark.parametrize("settings", FORCED_PLANS.values(), ids=FORCED_PLANS.keys())
@pytest.mark.parametrize("order", [FIFO, LIFO])
def test_the_size_is_a_hard_bound_on_any_plan(own_queue: TaskQueue, settings: str, order: Order) -> None:
    """On tables that were never analyzed, under every forced plan."""
    own_queue.push("work", numbered(60))
    own_queue.conn.execute(settings.encode())
    owner = own_queue.register("owner")
    for size in (1, 5, 20):
        assert len(own_queue.poll("work", owner, size, order)) == size
        assert own_queue.claim("work", owner, size, order) == size
    assert own_queue.count("work")["work"][State.ACTIVE].count == 52


def test_the_size_is_a_hard_bound_with_any_table_statistics(own_queue: TaskQueue, own_dsn: str) -> None:
    own_queue.push("work", numbered(60))
    own_queue.conn.execute("ANALYZE")
    owner = own_queue.register("owner")
    with connect(own_dsn, autocommit=True) as conn:
        other = TaskQueue(conn)
        other.push("work", numbered(3000, 100))
        assert [len(other.poll("work", owner, size)) for size in (1, 7, 50)] == [1, 7, 50]


@pytest.mark.parametrize("size", [0, -1])
def test_a_poll_of_size_zero_or_less_takes_nothing(queue: TaskQueue, owner: Owner, size: int) -> None:
    queue.push("work", ["a"])
    assert queue.poll("work", owner, size) == []
    assert states(queue) == [("a", State.READY)]


def test_a_poll_may_request_more_tasks_than_are_ready(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", ["a", "b"])
    assert identifiers(queue.poll("work", owner, 2**40)) == ["a", "b"]
    assert queue.poll("work", owner, 5) == []


def test_a_poll_is_undone_with_its_transaction(queue: TaskQueue, owner: Owner, session: TaskQueue) -> None:
    queue.push("work", ["a"])
    assert identifiers(session.poll("work", owner)) == ["a"]
    session.conn.rollback()
    [task] = queue.poll("work", owner)
    assert task.attempt == 1


@pytest.mark.promise("No call of a consumer waits for another consumer")
def test_a_poll_skips_the_tasks_that_another_open_transaction_polls(
    queue: TaskQueue, owner: Owner, open_queue: Callable[[], TaskQueue]
) -> None:
    queue.push("work", ["a", "b", "c", "d"])
    sessions = [open_queue() for _ in range(3)]
    polled = [identifiers(hurry(session).poll("work", owner)) for session in sessions]
    assert polled == [["a"], ["b"], ["c"]]
    assert identifiers(hurry(queue).poll("work", owner, 10)) == ["d"]


@pytest.mark.promise("No call of a consumer waits for another consumer")
@pytest.mark.parametrize(
    "work",
    [
        lambda session, _owner, _task: session.push("work", ["a", "b", "c"], "REPLACE"),
        lambda session, _owner, _task: session.push("work", ["a", "b"], "DELETE"),
        lambda session, owner, task: session.complete(owner, {task: Result.FAILURE}),
        lambda session, owner, _task: session.heartbeat(owner),
        lambda session, _owner, _task: session.register("bystander"),
        lambda session, _owner, _task: session.register("mine"),
        lambda session, owner, _task: session.release(owner),
        lambda session, _owner, _task: session.expire(),
        lambda session, _owner, _task: session.pause_topic("work"),
        lambda session, _owner, _task: session.alter_topic("work", TopicPolicy()),
        lambda session, _owner, _task: session.drop_topic("work"),
        lambda session, _owner, _task: session.ready("work", 10),
    ],
    ids=[
        *("replace", "delete", "complete", "heartbeat", "register other", "register own"),
        *("release", "expire", "pause", "alter", "drop", "ready"),
    ],
)
@pytest.mark.parametrize("same_owner", [True, False], ids=["same owner", "another owner"])
def test_a_poll_never_waits_for_another_open_transaction(
    queue: TaskQueue, session: TaskQueue, work: Callable[[TaskQueue, Owner, object], object], same_owner: bool
) -> None:
    queue.push("work", ["a", "b", "c"])
    mine, lapsed = queue.register("mine"), queue.register("lapsed")
    [task] = queue.poll("work", mine)
    queue.poll("work", lapsed)
    lapse(queue, lapsed)
    work(session, mine, task)
    polling = mine if same_owner else queue.register("other")
    assert set(identifiers(hurry(queue).poll("work", polling, 5))) <= {"c"}


def test_a_poll_needs_a_lease_that_has_not_lapsed(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", ["a"])
    lapse(queue, owner)
    with pytest.raises(LeaseLost, match=owner.name):
        queue.poll("work", owner)
    assert states(queue) == [("a", State.READY)]


def test_a_poll_takes_from_its_own_topic_only(queue: TaskQueue, owner: Owner) -> None:
    queue.create_topic("other")
    queue.push("other", ["x"])
    queue.push("work", ["a"])
    assert identifiers(queue.poll("work", owner, 9)) == ["a"]


def test_a_poll_finds_the_tasks_that_its_own_transaction_pushed(queue: TaskQueue, session: TaskQueue) -> None:
    session.push("work", ["a"])
    owner = session.register("me")
    [task] = session.poll("work", owner)
    session.complete(owner, {task: Result.SUCCESS})
    session.conn.commit()
    assert states(queue) == [("a", State.SUCCEEDED)]


@pytest.mark.parametrize("arguments", [{"order": "SIDEWAYS"}, {"condition": "MAYBE"}], ids=["order", "condition"])
def test_an_unknown_order_or_condition_is_refused(queue: TaskQueue, owner: Owner, arguments: dict[str, str]) -> None:
    queue.push("work", ["a"])
    with pytest.raises((TaskQueueError, ValueError)):
        queue.poll("work", owner, **cast("Any", arguments))
    assert states(queue) == [("a", State.READY)]


def test_a_claim_takes_the_tasks_that_a_poll_would_take_and_returns_their_number(
    queue: TaskQueue, owner: Owner
) -> None:
    queue.push("work", MIXED)
    assert queue.claim("work", owner, 3) == 3
    assert identifiers(queue.held(owner)) == ["high old", "high new", "middle"]
    assert queue.claim("work", owner, 100) == 5
    assert queue.claim("work", owner, 100) == 0
