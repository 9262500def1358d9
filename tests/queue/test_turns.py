"""One task at a time per identifier: between the two checks of a poll, and at scale. Other steps are in turns.spec."""

from collections.abc import Callable

import psycopg
import pytest

from airflow_provider_taskq.queue import Condition, NewTask, Owner, Result, State, TaskQueue
from tests.queue.conftest import hurry, task_in

SINGULAR = Condition.SINGULAR_BY_IDENTIFIER


@pytest.fixture
def opened(open_queue: Callable[[], TaskQueue]) -> Callable[[], TaskQueue]:
    """Opens sessions that raise an error instead of waiting."""
    return lambda: hurry(open_queue())


def _seen(queue: TaskQueue, condition: str = SINGULAR) -> tuple[list[int], list[str], str]:
    """Return the tasks that the first, lock-free check of a poll finds."""
    row = queue.conn.execute(
        "SELECT sequences, identifiers, seen_at FROM taskq_internal.turns_among_first("
        "(SELECT topic_id FROM taskq_internal.topic WHERE name = 'work'), clock_timestamp(), false, %s, 50, 50, '{}')",
        (condition,),
    ).fetchone()
    assert row is not None
    seen: tuple[list[int], list[str], str] = row
    return seen


def _claim(queue: TaskQueue, owner: Owner, seen: tuple[list[int], list[str], str]) -> list[int]:
    """The second step of a poll: locks the identifiers, checks again, claims."""
    row = queue.conn.execute(
        "SELECT claimed FROM taskq_internal.claim_identifiers((SELECT topic_id"
        " FROM taskq_internal.topic WHERE name = 'work'),"
        " (SELECT owner_id FROM taskq_internal.owner WHERE fence = %s), clock_timestamp(), false, %s, %s, %s, %s)",
        (owner.fence, SINGULAR, *seen),
    ).fetchone()
    assert row is not None
    claimed: list[int] = row[0]
    return claimed


def test_a_poll_sees_tasks_that_another_poll_claimed_and_completed_between_its_two_checks(
    queue: TaskQueue, owner: Owner, opened: Callable[[], TaskQueue]
) -> None:
    """The steps are single statements. The second check sees each task that another poll changed since the first."""
    one = opened()
    first = one.register("one")
    one.conn.commit()
    tasks = queue.push("work", ["a", "a", "b"])

    seen = _seen(one)
    assert seen[0] == [tasks[0].sequence, tasks[2].sequence]
    assert queue.poll("work", owner, condition=SINGULAR) == [tasks[0]]
    assert _claim(one, first, seen) == [tasks[2].sequence], "a is ACTIVE by now"
    one.conn.rollback()

    seen = _seen(one)
    queue.complete(owner, {tasks[0]: Result.SUCCESS})
    assert queue.poll("work", owner, condition=SINGULAR) == [tasks[1]]
    assert seen[0] == [tasks[2].sequence]
    one.conn.rollback()

    seen = _seen(one)
    queue.complete(owner, {tasks[1]: Result.SUCCESS})
    assert _claim(one, first, seen) == [tasks[2].sequence]
    one.conn.rollback()


def test_a_task_with_an_earlier_place_takes_the_turn_between_the_two_checks_of_a_poll(
    queue: TaskQueue, owner: Owner, opened: Callable[[], TaskQueue]
) -> None:
    failed = task_in(queue, owner, State.FAILED, "a")
    [fresh] = queue.push("work", ["a"])
    one = opened()
    first = one.register("one")
    one.conn.commit()
    seen = _seen(one)
    assert seen[0] == [fresh.sequence]
    queue.revive("work", State.FAILED)
    assert _claim(one, first, seen) == [], "the revived task is at its old place, ahead"
    one.conn.rollback()
    assert queue.poll("work", owner, condition=SINGULAR) == [failed]


def test_a_task_of_higher_priority_takes_the_turn_between_the_two_checks_of_a_poll(
    queue: TaskQueue, opened: Callable[[], TaskQueue]
) -> None:
    queue.push("work", ["a"])
    one = opened()
    first = one.register("one")
    one.conn.commit()
    seen = _seen(one)
    queue.push("work", [NewTask("a", priority=1)])
    assert _claim(one, first, seen) == []


def test_the_second_check_claims_at_once_if_nothing_was_committed_since_the_first(
    queue: TaskQueue, opened: Callable[[], TaskQueue]
) -> None:
    queue.push("work", ["a", "b"])
    one = opened()
    first = one.register("one")
    one.conn.commit()
    one.conn.isolation_level = (
        psycopg.IsolationLevel.REPEATABLE_READ
    )  # otherwise the snapshot shows other databases too
    seen = _seen(one)
    row = one.conn.execute("SELECT pg_current_snapshot()::text").fetchone()
    assert row == (seen[2],)
    assert _claim(one, first, seen) == seen[0]


def test_no_two_tasks_of_an_identifier_are_active_under_any_interleaving_of_two_polls(
    queue: TaskQueue, opened: Callable[[], TaskQueue]
) -> None:
    """All orders of look, look, take, take. The second poll to take gets nothing."""
    steps = ["look one", "look two", "take one", "take two", "commit one", "commit two"]
    orders = [
        order
        for order in _orders(steps)
        if all(order.index(f"look {n}") < order.index(f"take {n}") < order.index(f"commit {n}") for n in ("one", "two"))
    ]
    assert len(orders) == 20
    one, two = opened(), opened()
    owners = {"one": one.register("one"), "two": two.register("two")}
    one.conn.commit()
    two.conn.commit()
    for number, order in enumerate(orders):
        [task] = queue.push("work", [f"id-{number}"])
        queue.push("work", [f"id-{number}"])
        seen, claimed = {}, {}
        for step in order:
            verb, _, name = step.partition(" ")
            session = {"one": one, "two": two}[name]
            if verb == "look":
                seen[name] = _seen(session)
            elif verb == "take":
                claimed[name] = _claim(session, owners[name], seen[name])
            else:
                session.conn.commit()
        assert sorted(claimed.values()) in ([[], [task.sequence]], [[task.sequence]]), order
        held = [task for owner in owners.values() for task in queue.held(owner)]
        assert len(held) == 1, order
        queue.complete(next(o for o in owners.values() if queue.held(o)), {held[0]: Result.SUCCESS})
        queue.complete(owners["one"], dict.fromkeys(queue.poll("work", owners["one"], 9), Result.SUCCESS))


def _orders(steps: list[str]) -> list[list[str]]:
    """All orders of these steps."""
    if not steps:
        return [[]]
    return [[step, *rest] for step in steps for rest in _orders([other for other in steps if other != step])]


def test_one_claim_takes_tasks_of_a_hundred_thousand_identifiers(own_queue: TaskQueue) -> None:
    """As advisory locks, these would exceed the lock table of the server."""
    own_queue.push_stream("work", (f"id-{number}" for number in range(100_000)))
    owner = own_queue.register("me")
    assert own_queue.claim("work", owner, 100_000, condition=SINGULAR) == 100_000


def test_the_rows_that_lock_identifiers_never_change(own_queue: TaskQueue) -> None:
    """The rows are locked only, so they leave no dead rows."""
    own_queue.push("work", [f"id-{number}" for number in range(500)])
    owner = own_queue.register("me")
    for _ in range(5):
        own_queue.poll("work", owner, 100, condition=SINGULAR)
    changed = own_queue.conn.execute(
        "SELECT count(*), count(*) FILTER (WHERE xmax::text <> '0') FROM taskq_internal.identifier_lock"
    ).fetchone()
    assert changed is not None
    assert changed[0] == 65_536
    assert 400 < changed[1] <= 500
    size = own_queue.conn.execute("SELECT pg_relation_size('taskq_internal.identifier_lock')").fetchone()
    assert size is not None
    assert size[0] < 4 * 1024 * 1024
