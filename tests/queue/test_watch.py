"""Watch: one query answers all waits of any kind."""

from collections.abc import Sequence
from datetime import timedelta

import psycopg
import pytest

from airflow_provider_taskq.queue import NewTask, Owner, State, TaskQueue
from tests.internals import age_tasks
from tests.queue.conftest import states, task_in

pytestmark = pytest.mark.promise("A gate opens when its topic is ready, in every mode")

LOOK = (
    "SELECT kind, position, number, waited FROM taskq.watch(%b::text[], %b::int[], %b::text[], %b::boolean[],"
    " %b::text[], %b::text[], %b::text[], %b::text[], %b::text[], %b::int[], %b::int[], %b::text[])"
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


def test_one_call_of_watch_answers_all_kinds_of_waits(queue: TaskQueue) -> None:
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


@pytest.mark.parametrize("state", State)
def test_watch_returns_the_state_of_the_newest_task_of_each_identifier(
    queue: TaskQueue, owner: Owner, state: State
) -> None:
    task_in(queue, owner, State.FAILED if state is not State.FAILED else State.FILTERED)
    task_in(queue, owner, state)
    assert look(queue.conn, state=[("work", "a")]) == {("state", 1): (state, None)}


def test_watch_returns_how_long_the_oldest_due_task_has_waited(queue: TaskQueue) -> None:
    late, _ = queue.push("work", [NewTask("late", priority=-5), NewTask("new", priority=5)])
    assert look(queue.conn, [("work", 1, "NONE", False)])["ready", 1] == (1, None)
    age_tasks(queue.conn, timedelta(seconds=90), [late.sequence])
    number, waited = look(queue.conn, [("work", 9, "NONE", True)])["ready", 1]
    assert number == 2
    assert waited == pytest.approx(90, abs=30)
    queue.pause_topic("work")
    assert look(queue.conn, [("work", 9, "NONE", True)])["ready", 1] == (0, None)
