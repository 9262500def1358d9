"""One task at a time per identifier under concurrency: a naive query fails under these steps, and a poll does not."""

from collections.abc import Callable

import psycopg
import pytest

from airflow_provider_taskq.queue import Condition, NewTask, Owner, Result, State, TaskQueue, connect
from tests.queue.conftest import hurry, identifiers, task_in

SINGULAR = Condition.SINGULAR_BY_IDENTIFIER

NAIVE_TABLE = "CREATE TABLE naive (sequence bigint PRIMARY KEY, identifier text, state int DEFAULT 1)"
NAIVE_POLL = """WITH head AS MATERIALIZED (
    SELECT c.sequence FROM naive c WHERE c.state = 1 AND NOT EXISTS (
        SELECT FROM naive e WHERE e.identifier = c.identifier AND e.state IN (0, 1) AND e.sequence < c.sequence)
    ORDER BY c.sequence LIMIT 1 FOR UPDATE SKIP LOCKED)
UPDATE naive n SET state = 0 FROM head WHERE n.sequence = head.sequence RETURNING n.sequence"""


@pytest.fixture
def opened(open_queue: Callable[[], TaskQueue]) -> Callable[[], TaskQueue]:
    """Opens sessions that raise an error instead of waiting."""
    return lambda: hurry(open_queue())


def test_a_naive_anti_join_hands_out_two_tasks_of_an_identifier_if_the_lower_commits_late_and_a_poll_does_not(
    own_dsn: str,
) -> None:
    with connect(own_dsn) as late, connect(own_dsn) as one, connect(own_dsn) as two:
        one.execute(NAIVE_TABLE.encode())
        one.commit()
        late.execute("INSERT INTO naive VALUES (1, 'a')")  # drew its number first, commits later
        one.execute("INSERT INTO naive VALUES (2, 'a')")
        one.commit()
        claimed = one.execute(NAIVE_POLL.encode()).fetchall()
        late.commit()
        claimed += two.execute(NAIVE_POLL.encode()).fetchall()
        assert claimed == [(2,), (1,)], "both ACTIVE at once, and overtaken: else this test shows nothing"

        queues = [TaskQueue(conn) for conn in (late, one, two)]
        for conn in (one, two):
            conn.rollback()
        queues[1].create_topic("work")
        owners = [queue.register(f"owner {number}") for number, queue in enumerate(queues[1:])]
        one.commit()
        two.commit()
        queues[0].push("work", ["a"])
        [second] = queues[1].push("work", ["a"])
        one.commit()
        assert queues[1].poll("work", owners[0], condition=SINGULAR) == [second]
        late.commit()
        assert queues[2].poll("work", owners[1], condition=SINGULAR) == []
        one.commit()
        assert queues[2].poll("work", owners[1], condition=SINGULAR) == []


def test_a_poll_leaves_out_identifiers_that_another_poll_examines_and_never_waits(
    queue: TaskQueue, opened: Callable[[], TaskQueue]
) -> None:
    queue.push("work", ["a", "b", "a", "b", "c"])
    one, two = opened(), opened()
    first, second = one.register("one"), two.register("two")
    assert identifiers(one.poll("work", first, 2, condition=SINGULAR)) == ["a", "b"]
    assert identifiers(two.poll("work", second, 10, condition=SINGULAR)) == ["c"]
    assert two.ready("work", 10, SINGULAR) == 0


def test_a_task_whose_poll_was_rolled_back_goes_to_the_next_poll(
    queue: TaskQueue, opened: Callable[[], TaskQueue]
) -> None:
    tasks = queue.push("work", ["a", "a"])
    one, two = opened(), opened()
    first, second = one.register("one"), two.register("two")
    one.conn.commit()
    assert one.poll("work", first, 2, condition=SINGULAR) == [tasks[0]]
    assert two.poll("work", second, 2, condition=SINGULAR) == []
    one.conn.rollback()
    assert two.poll("work", second, 2, condition=SINGULAR) == [tasks[0]]


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


def test_only_one_of_two_polls_hands_out_a_group(queue: TaskQueue, opened: Callable[[], TaskQueue]) -> None:
    queue.push("work", ["a", "a", "b"])
    one, two = opened(), opened()
    first, second = one.register("one"), two.register("two")
    assert {name: len(group) for name, group in one.poll_batch("work", first).items()} == {"a": 2}
    assert {name: len(group) for name, group in two.poll_batch("work", second, 5).items()} == {"b": 1}
    one.conn.rollback()
    assert list(two.poll_batch("work", second, 5)) == ["a"]


def test_a_poll_leaves_out_a_group_if_another_transaction_holds_one_of_its_tasks(
    queue: TaskQueue, opened: Callable[[], TaskQueue]
) -> None:
    queue.push("work", ["a", "a", "b"])
    one, two = opened(), opened()
    first, second = one.register("one"), two.register("two")
    assert len(one.poll("work", first)) == 1, "under NONE, which locks no identifier"
    assert list(two.poll_batch("work", second, 5)) == ["b"]


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
