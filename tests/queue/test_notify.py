"""What a waiting program learns: a topic with `notify` tells of each push, and `watch` answers all waits."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from airflow_provider_taskq.queue import NewTask, Owner, Revival, State, TaskQueue
from tests.internals import age_tasks
from tests.queue.conftest import states, task_in

pytestmark = pytest.mark.promise("A push notifies at its commit, if the policy of the topic has `notify`")

# The arrays of taskq.staged_task that a Spark executor fills, and the push by its driver.
STAGED = """WITH stage AS (SELECT taskq.open_stage() AS stage)
    INSERT INTO taskq.staged_task (stage, part, attempt, place, topic, identifier)
    SELECT stage, 0, 0, 0, 'work', 'a' FROM stage RETURNING stage"""
PUSH_STAGED = "SELECT taskq.commit_stage(%s::uuid, '{0}', '{0}', '{1}')"


def push_staged(queue: TaskQueue) -> None:
    """Pushes one task as the driver of a Spark job does."""
    row = queue.conn.execute(STAGED).fetchone()
    assert row is not None
    queue.conn.execute(PUSH_STAGED, row)


def offer_again(queue: TaskQueue) -> None:
    """Offers an identifier whose task waits until tomorrow, which updates the task."""
    assert queue.offer("work", "later").outcome == "UPDATED"


PUSHES: dict[str, Callable[[TaskQueue], object]] = {
    "push of one": lambda queue: queue.push("work", ["a"]),
    "push of many": lambda queue: queue.push("work", ["a", "b", NewTask("c", delay=timedelta(days=1))]),
    "push stream": lambda queue: queue.push_stream("work", ["a", "b"]),
    "offer": lambda queue: queue.offer("work", "a"),
    "offer that updates": offer_again,
    "ticks": lambda queue: queue.install_ticks("work", "daily", "hash", [(datetime(2030, 1, 1, tzinfo=UTC), None)]),
    "staged push": push_staged,
    "reset": lambda queue: queue.revive("work", State.FAILED),
    "recreation": lambda queue: queue.revive("work", State.FAILED, Revival.APPEND),
    "junction": lambda queue: queue.junction("work", [["suspended"]]),
}

SILENT: dict[str, Callable[[TaskQueue], object]] = {
    "empty push": lambda queue: queue.conn.execute("SELECT taskq.push('work', 'APPEND', '{}'::text[])"),
    "offer that is ignored": lambda queue: queue.offer("work", "later", if_exists="ignore"),
    "revival of nothing": lambda queue: queue.revive("work", State.EXPIRED),
    "poll": lambda queue: queue.poll("work", queue.register("other")),
    "push to a topic without the policy": lambda queue: queue.push("silent", ["a"]),
}


@pytest.fixture
def notifying(queue: TaskQueue, owner: Owner) -> TaskQueue:
    """The topic `work` with `notify`, with tasks to revive, to release and to offer again; and the topic `silent`."""
    task_in(queue, owner, State.FAILED, identifier="failed")
    queue.push("work", [NewTask("suspended", suspended=True)])
    queue.offer("work", "later", delay=timedelta(days=1))
    queue.alter_topic("work", notify=True)
    queue.create_topic("silent")
    return queue


@pytest.fixture
def listening(dsn: str) -> Iterator[psycopg.Connection]:
    """A listening session."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("LISTEN taskq")
        yield conn


def heard(queue: TaskQueue, listening: psycopg.Connection) -> list[str]:
    """The notifications that were sent before this call. They arrive in commit order, so the last one ends the wait."""
    queue.notify("the end")
    payloads: list[str] = []
    for notice in listening.notifies(timeout=60):
        if notice.payload == "the end":
            return payloads
        payloads.append(notice.payload)
    raise AssertionError(f"the last notification did not arrive, only {payloads}")


@pytest.mark.parametrize("verb", PUSHES)
def test_a_push_notifies_once_its_transaction_commits(
    notifying: TaskQueue, listening: psycopg.Connection, session: TaskQueue, verb: str
) -> None:
    PUSHES[verb](session)
    session.conn.rollback()
    PUSHES[verb](session)
    assert heard(notifying, listening) == []
    session.conn.commit()
    assert heard(notifying, listening) == ["work"]


@pytest.mark.parametrize("verb", SILENT)
def test_a_call_that_stores_no_task_or_has_no_such_policy_notifies_of_nothing(
    notifying: TaskQueue, listening: psycopg.Connection, verb: str
) -> None:
    SILENT[verb](notifying)
    assert heard(notifying, listening) == []


def test_a_transaction_notifies_once_of_a_topic(notifying: TaskQueue, listening: psycopg.Connection) -> None:
    with notifying.conn.transaction():
        for name in "abc":
            notifying.push("work", [name])
        notifying.push_stream("work", ["d", "e"])
    assert heard(notifying, listening) == ["work"]
    assert states(notifying)[-5:] == [(name, State.READY) for name in "abcde"]


# Watch: one query answers all waits of any kind

LOOK = (
    "SELECT kind, position, number, waited"
    " FROM taskq.watch_tasks(%b::text[], %b::int[], %b::text[], %b::boolean[], %b::text[], %b::text[])"
    " UNION ALL SELECT 'juncture', position, number, NULL"
    " FROM taskq.watch_groups(%b::text[], %b::text[], %b::text[], %b::int[], %b::int[], %b::text[])"
)
Ready = tuple[str, int, str, bool]


def look(
    conn: psycopg.Connection,
    ready: Sequence[Ready] = (),
    state: Sequence[tuple[str, str]] = (),
    junctures: Sequence[tuple[str, str, str]] = (),
    groups: Sequence[tuple[int, int, str]] = (),
) -> dict[tuple[str, int], tuple[int | None, float | None]]:
    """The answers of one call of watch, by kind and place."""
    columns = [
        [[row[place] for row in rows] for place in range(width)]
        for rows, width in ((ready, 4), (state, 2), (junctures, 3), (groups, 3))
    ]
    rows = conn.execute(LOOK, [column for kind in columns for column in kind]).fetchall()
    return {(kind, position): (number, waited) for kind, position, number, waited in rows}


@pytest.mark.promise("A gate opens when its topic is ready, in every mode")
def test_one_call_of_watch_answers_all_kinds_of_waits(queue: TaskQueue, owner: Owner) -> None:
    task_in(queue, owner, State.FAILED)  # of the states, that of the newest task counts
    queue.push("work", ["a", "b", NewTask("c", suspended=True)])
    seen = look(
        queue.conn,
        [("work", 9, "NONE", False), ("work", 1, "SINGULAR_BY_IDENTIFIER", False), ("missing", 1, "NONE", True)],
        [("work", "a"), ("work", "z"), ("missing", "a")],
        [("gate", "work", "SINGULAR"), ("other", "work", "SINGULAR"), ("gate", "missing", "SINGULAR")],
        [(1, 0, "c"), (2, 0, "c"), (2, 1, "d"), (3, 0, "c")],
    )
    assert {place: number for place, (number, _) in seen.items()} == {
        ("ready", 1): 2,
        ("ready", 2): 1,
        ("ready", 3): -1,
        ("state", 1): State.READY,
        ("state", 2): None,
        ("state", 3): -1,
        ("juncture", 1): 0,
        ("juncture", 2): 2,  # the first has taken it
        ("juncture", 3): -1,
    }
    assert states(queue)[-1] == ("c", State.READY)


@pytest.mark.promise("A gate opens when its topic is ready, in every mode")
def test_watch_returns_how_long_the_oldest_due_task_has_waited(queue: TaskQueue) -> None:
    late, _ = queue.push("work", [NewTask("late", priority=-5), NewTask("new", priority=5)])
    assert look(queue.conn, [("work", 1, "NONE", False)])["ready", 1] == (1, None)
    age_tasks(queue.conn, timedelta(seconds=90), [late.sequence])
    number, waited = look(queue.conn, [("work", 9, "NONE", True)])["ready", 1]
    assert number == 2
    assert waited == pytest.approx(90, abs=30)
    queue.pause_topic("work")
    assert look(queue.conn, [("work", 9, "NONE", True)])["ready", 1] == (0, None)
