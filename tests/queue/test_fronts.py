"""Fronts: polls begin behind the tasks that were claimed before, and pass no task (sql/order/fronts.sql)."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta

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
    Revival,
    State,
    Task,
    TaskQueue,
    TopicPolicy,
    connect,
)
from tests.internals import advance_fronts, age_upkeep, fronts, interrupted, passed_tasks, set_fronts_ahead
from tests.queue.conftest import InBackground, await_lock_wait, identifiers, known, lapse, pass_time, task_in
from tests.queue.explained import explain

pytestmark = pytest.mark.promise("A poll passes no due task, however transactions interleave")

HOUR = timedelta(hours=1)
AT_ONCE = timedelta(0)
FIFO, LIFO = Order.FIRST_IN_FIRST_OUT, Order.LAST_IN_FIRST_OUT
SINGULAR = Condition.SINGULAR_BY_IDENTIFIER
RETRIES = TopicPolicy(RetryPolicy(max_attempts=9, base=AT_ONCE))
PROBES = TopicPolicy(RetryPolicy(max_attempts=9, base=AT_ONCE, probe=True))
DOWN = Decision(Result.FAILURE, error="down")


def advance(queue: TaskQueue, order: Order = FIFO) -> None:
    """Advances the fronts as far as possible. A poll does this for some priorities, at random."""
    advance_fronts(queue.conn, backwards=order is LIFO)


def front(queue: TaskQueue, priority: int = 0) -> tuple[datetime, int]:
    """The place of the front that counts."""
    return next((moment, sequence) for each, moment, sequence in reversed(fronts(queue.conn)) if each == priority)


def drain(queue: TaskQueue, owner: Owner, order: Order = FIFO) -> list[str]:
    """Polls and completes all tasks, five at a time, and returns their identifiers."""
    done: list[str] = []
    while tasks := queue.poll("work", owner, 5, order):
        queue.complete(owner, dict.fromkeys(tasks, Result.SUCCESS))
        done += identifiers(tasks)
    return done


# No task is passed

Way = Callable[[TaskQueue, Owner, Task], object]


def after(first: Way, then: Way) -> Way:
    """One call after the other."""

    def way(queue: TaskQueue, owner: Owner, task: Task) -> None:
        first(queue, owner, task)
        then(queue, owner, task)

    return way


def altered(policy: TopicPolicy) -> Way:
    return lambda queue, _owner, _task: queue.alter_topic("work", policy)


def ended(decision: Decision | Result) -> Way:
    return lambda queue, owner, task: queue.complete(owner, {task: decision})


def revived(revival: Revival) -> Way:
    return lambda queue, _owner, task: queue.revive("work", revival=revival, sequences=[task.sequence])


def released(queue: TaskQueue, owner: Owner, _task: Task) -> None:
    queue.release(owner)


def pause_and_resume(queue: TaskQueue, _owner: Owner, task: Task) -> None:
    queue.change_waiting("work", [task.sequence], paused=True)
    advance(queue)
    queue.change_waiting("work", [task.sequence], paused=False)


def give_a_time(queue: TaskQueue, _owner: Owner, task: Task) -> None:
    queue.change_waiting("work", [task.sequence], due="now")
    queue.change_waiting("work", [task.sequence], attempts=1)


WAYS_BACK: dict[str, Way] = {
    "released": released,
    "taken over": lambda queue, owner, _task: queue.release(queue.register(owner.name)),
    "expired": after(lambda queue, owner, _task: lapse(queue, owner), lambda queue, _owner, _task: queue.expire()),
    "failed": ended(DOWN),
    "failed within its ttl": after(altered(TopicPolicy(ttl=HOUR)), ended(DOWN)),
    "failed before a probe": after(altered(PROBES), ended(DOWN)),
    "snoozed": ended(Decision(Result.SUSPENSION, delay=0)),
    "reset": after(ended(Result.SUCCESS), revived(Revival.RESET)),
    "recreated": after(ended(Result.SUCCESS), revived(Revival.APPEND)),
    "joined": after(ended(Result.SUSPENSION), lambda queue, _owner, task: queue.junction("work", [[task.identifier]])),
    "offered again": after(released, lambda queue, _owner, task: queue.offer("work", task.identifier, {"newer": True})),
    "made urgent": after(
        released, lambda queue, _owner, task: queue.change_waiting("work", [task.sequence], priority=7)
    ),
    "paused and resumed": after(released, pause_and_resume),
    "given a time": after(released, give_a_time),
}


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("way", WAYS_BACK)
def test_a_task_that_becomes_ready_again_is_polled_however_far_the_front_has_advanced(
    queue: TaskQueue, way: str, order: Order
) -> None:
    queue.alter_topic("work", RETRIES)
    owner, *others = (queue.register(name) for name in ("first", "second", "third"))
    task = task_in(queue, owner, State.ACTIVE)
    advance(queue, order)
    queue.push("work", ["later"])
    WAYS_BACK[way](queue, owner, task)
    assert passed_tasks(queue.conn) == []
    advance(queue, order)
    assert passed_tasks(queue.conn) == []
    for condition in (Condition.NONE, SINGULAR):
        assert queue.ready("work", 9, condition) == 2
        with queue.conn.transaction(force_rollback=True):
            polled = [task for each in others for task in queue.poll("work", each, 9, order, condition)]
            assert sorted(identifiers(polled)) == ["a", "later"], "in two polls after a crash"


def fail_again(session: TaskQueue, owner: Owner, task: Task) -> None:
    with session.conn.transaction(force_rollback=True):
        session.complete(owner, {task: DOWN})
    session.complete(owner, {task: DOWN})


def fail_two(session: TaskQueue, owner: Owner, task: Task) -> None:
    session.create_topic("other", RETRIES)
    session.push("other", ["b"])
    session.complete(owner, dict.fromkeys(session.poll("other", owner), DOWN))
    session.complete(owner, {task: DOWN})


# What an open transaction does, and the task that it may still bring.
OPEN: dict[str, tuple[Way, str]] = {
    "push": (lambda session, _owner, _task: session.push("work", ["pushed"]), "pushed"),
    "retry": (ended(DOWN), "a"),
    "retry after a rollback to a savepoint": (fail_again, "a"),
    "retry after one of another topic": (fail_two, "a"),
    "claim that is rolled back": (lambda session, owner, _task: session.poll("work", owner), "claimed"),
}


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("kind", OPEN)
def test_a_front_stays_before_the_task_of_an_open_transaction(
    queue: TaskQueue, owner: Owner, session: TaskQueue, kind: str, order: Order
) -> None:
    queue.alter_topic("work", RETRIES)
    held = task_in(queue, owner, State.ACTIVE)
    if "claim" in kind:
        queue.push("work", ["claimed"])
    session.conn.execute("SELECT")
    work, brought = OPEN[kind]
    work(session, owner, held)
    queue.push("work", ["later"])
    assert drain(queue, queue.register("other"), order) == ["later"]
    advance(queue, order)
    session.conn.rollback() if "claim" in kind else session.conn.commit()
    assert passed_tasks(queue.conn) == []
    assert drain(queue, owner, order) == [brought]


def test_an_open_retry_holds_back_no_front_of_another_topic(queue: TaskQueue, owner: Owner, session: TaskQueue) -> None:
    queue.create_topic("other", RETRIES)
    queue.push("other", ["b"])
    session.complete(owner, dict.fromkeys(queue.poll("other", owner), DOWN))
    [later] = queue.push("work", ["later"])
    assert drain(queue, owner) == ["later"]
    advance(queue)
    assert front(queue)[0] > known(queue, later).created


Call = Callable[[TaskQueue], object]
Stopped = Callable[[Call], AbstractContextManager[Callable[[], None]]]


@pytest.fixture
def stopped(queue: TaskQueue, open_queue: Callable[[], TaskQueue], background: InBackground[object]) -> Stopped:
    """Stops a call before it stores the task `stopped`. What it yields lets the call end, and commits."""
    holding, calling = open_queue(), open_queue()

    @contextmanager
    def stopped(call: Call) -> Iterator[Callable[[], None]]:
        def go_on() -> None:
            holding.conn.rollback()
            done.result(300)
            calling.conn.commit()

        holding.conn.execute("SELECT pg_advisory_xact_lock(4711)")
        stop = "IF NEW.identifier = 'stopped' THEN PERFORM pg_advisory_xact_lock(4711); END IF;"
        with interrupted(queue.conn, "push", stop):
            done = background(lambda: call(calling))
            await_lock_wait(queue.conn, calling)
            yield go_on

    return stopped


def test_a_front_stays_before_a_push_that_has_read_its_time_and_stored_nothing_yet(
    queue: TaskQueue, owner: Owner, stopped: Stopped
) -> None:
    with stopped(lambda pushing: pushing.push("work", ["stopped"])) as go_on:
        queue.push("work", ["a"])
        assert drain(queue, owner) == ["a"]
        advance(queue)
        go_on()
    assert passed_tasks(queue.conn) == []
    assert drain(queue, owner) == ["stopped"]


def test_a_front_stays_before_an_open_push_that_began_during_a_recreation(
    queue: TaskQueue, owner: Owner, session: TaskQueue, stopped: Stopped
) -> None:
    """The recreation draws its sequence before the push, and its task is in the log before the task of the push."""
    task = task_in(queue, owner, State.SUSPENDED, "stopped")
    with stopped(lambda each: each.revive("work", revival="APPEND", sequences=[task.sequence])) as go_on:
        session.push("work", ["b"])
        go_on()
        assert drain(queue, owner) == ["stopped"]
        advance(queue)
        session.conn.commit()
    assert passed_tasks(queue.conn) == []
    assert drain(queue, owner) == ["b"]


def test_a_task_is_polled_although_the_clock_of_the_server_was_set_back(
    queue: TaskQueue, owner: Owner, session: TaskQueue
) -> None:
    queue.alter_topic("work", RETRIES)
    retried = task_in(queue, owner, State.ACTIVE, "retried")
    advance(queue)
    set_fronts_ahead(queue.conn, HOUR)
    queue.push("work", ["one"])
    queue.push("work", ["two", "three"])
    assert queue.ready("work", 9) == 3
    assert drain(queue, queue.register("other")) == ["one", "two", "three"]
    advance(queue)
    pass_time(queue, -HOUR)
    queue.complete(owner, {retried: DOWN})
    assert passed_tasks(queue.conn) == []
    assert drain(queue, owner) == ["retried"]
    queue.push("work", ["a"])
    pass_time(queue, -HOUR)
    assert drain(queue, owner) == ["a"]
    session.push("work", ["open"])
    advance(queue)
    session.conn.commit()
    assert passed_tasks(queue.conn) == []
    assert drain(queue, owner) == ["open"]


@pytest.mark.parametrize("noticed_by", ["a poll", "a poll of batches", "a push", "upkeep"])
def test_what_is_due_at_its_push_is_due_although_the_clock_was_ahead_then(
    queue: TaskQueue, owner: Owner, noticed_by: str
) -> None:
    queue.push("work", [NewTask("scheduled", delay=timedelta(minutes=1))])
    queue.push("work", ["a", NewTask("b", priority=1), NewTask("held", priority=2)])
    assert identifiers(queue.poll("work", owner)) == ["held"]
    delayed, _ = queue.push("work", [NewTask("delayed", delay=timedelta(minutes=1)), "c"])
    queue.change_waiting("work", [delayed.sequence], priority=7)
    pass_time(queue, -2 * HOUR)
    age_upkeep(queue.conn, -2 * HOUR)
    if noticed_by == "a push":
        queue.push("work", [NewTask("last", priority=-1)])
    if noticed_by in {"a push", "upkeep"}:
        queue.maintain()
        assert queue.ready("work", 9) == 3 + (noticed_by == "a push")
    if noticed_by == "a poll of batches":
        found = list(queue.poll_batch("work", owner, 9))
    else:
        found = identifiers(queue.poll("work", owner, 9))
    assert found == ["b", "a", "c", *["last"] * (noticed_by == "a push")]
    queue.release(owner)
    assert drain(queue, queue.register("other")) == ["held", *found]
    assert passed_tasks(queue.conn) == []


def test_an_empty_priority_costs_a_poll_no_query_of_its_own(own_queue: TaskQueue) -> None:
    own_queue.push("work", [NewTask(str(number), priority=number) for number in range(-50, 50)])
    owner = own_queue.register("me")
    drain(own_queue, owner)
    advance(own_queue)
    polled = explain(own_queue.conn, lambda: own_queue.poll("work", owner, 5))
    assert polled.scans < 5 * 100
    assert polled.pages < 15 * 100


def test_a_poll_above_read_committed_moves_no_front(queue: TaskQueue, owner: Owner, session: TaskQueue) -> None:
    queue.push("work", [str(number) for number in range(2000)])
    before = front(queue)
    session.conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    session.poll("work", owner, 1000)
    session.conn.commit()
    assert front(queue) == before
    queue.poll("work", owner, 1000)
    assert front(queue) != before


def test_rows_of_fronts_are_removed_once_they_no_longer_count(queue: TaskQueue, owner: Owner) -> None:
    for name in "abc":
        queue.push("work", [name, NewTask(name, priority=5)])
        drain(queue, owner)
        advance(queue)
    before = [front(queue), front(queue, 5)]
    queue.maintain()
    assert len(fronts(queue.conn)) == 2
    assert [front(queue), front(queue, 5)] == before
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


WATCH = "SELECT FROM taskq.watch_tasks('{work}', '{5}', '{NONE}', '{true}', '{}', '{}')"
CALLS: dict[Order, dict[str, Callable[[TaskQueue, Owner], object]]] = {
    FIFO: {
        "poll of one": lambda queue, owner: queue.poll("work", owner),
        "poll of a hundred": lambda queue, owner: queue.poll("work", owner, 100),
        "poll of one per identifier": lambda queue, owner: queue.poll("work", owner, 100, condition=SINGULAR),
        "ready": lambda queue, _owner: queue.ready("work", 10),
        "watch": lambda queue, _owner: queue.conn.execute(WATCH.encode()),
    },
    LIFO: {"poll of one": lambda queue, owner: queue.poll("work", owner, 1, LIFO)},
}


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("kind", ["one priority", "priorities", "retries"])
def test_a_call_reads_no_more_pages_while_a_long_transaction_keeps_the_entries_of_claimed_tasks(
    own_queue: TaskQueue, own_dsn: str, kind: str, order: Order
) -> None:
    """Without fronts, the calls read the dead entries of all tasks that were claimed since the first measurement."""
    queue, owner = own_queue, own_queue.register("measured", HOUR)
    queue.alter_topic("work", RETRIES)

    def drain_some() -> int:
        """Polls a hundred tasks and completes them, and those held before. Of retries, a tenth fails once."""
        queue.poll("work", owner, 100, order)
        tasks = queue.held(owner)
        failing = {task for task in tasks[::10] if task.attempt == 1 and kind == "retries"}
        queue.complete(owner, {task: DOWN if task in failing else Result.SUCCESS for task in tasks})
        return len(tasks)

    def measured() -> dict[str, int]:
        pages: dict[str, list[int]] = {name: [] for name in CALLS[order]}
        for _ in range(3):
            for name, call in CALLS[order].items():
                pages[name].append(explain(queue.conn, lambda: call(queue, owner)).pages)  # noqa: B023 - called at once
                drain_some()
        return {name: sorted(found)[1] for name, found in pages.items()}

    priorities = 3 if kind == "priorities" else 1
    queue.push_stream("work", (NewTask(str(number), priority=number % priorities) for number in range(15_000)))
    with long_snapshot(own_dsn):
        first = measured()
        for _ in range(90):
            drain_some()
        last = measured()
    assert {name: (first[name], pages) for name, pages in last.items() if pages >= 2 * first[name] + 100} == {}
