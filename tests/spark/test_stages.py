"""What executors staged is carried out whole, once, by the living owner (sql/functions/spark.sql)."""

from typing import Any
from uuid import uuid4

import psycopg
import pytest

from airflow_provider_taskq.queue import LeaseLost, NotHeld, Owner, State, TaskQueue, TaskQueueError
from airflow_provider_taskq.queue.errors import translated
from airflow_provider_taskq.spark.source.complete_writer import abandon_stage, open_stage

Connection = psycopg.Connection[Any]


@pytest.fixture
def sequences(queue: TaskQueue, owner: Owner) -> list[int]:
    """Four tasks that the owner holds."""
    pushed = [task.sequence for task in queue.push("work", ["a", "b", "c", "d"])]
    assert queue.claim("work", owner, 4) == 4
    return pushed


def put(conn: Connection, stage: str, part: int, attempt: int, decisions: dict[int, int], note: str = "") -> None:
    for sequence, result in decisions.items():
        conn.execute(
            "INSERT INTO taskq.staged VALUES (%s, %s, %s, %s, %s, %s)",
            (stage, part, attempt, sequence, result, f'"{note}"'),
        )


def carry_out(conn: Connection, owner: Owner, stage: str, won: dict[tuple[int, int], int]) -> int:
    parts, attempts = [part for part, _ in won], [attempt for _, attempt in won]
    with translated():
        row = conn.execute(
            "SELECT taskq.complete_staged(%s, %s, %s, %s::int[], %s::bigint[], %s::bigint[])",
            (owner.name, owner.fence, stage, parts, attempts, list(won.values())),
        ).fetchone()
    assert row
    return int(row[0])


def states(queue: TaskQueue) -> dict[State, int]:
    return {state: count.count for state, count in queue.count("work")["work"].items()}


def staged(conn: Connection) -> int:
    row = conn.execute("SELECT count(*) FROM taskq.staged").fetchone()
    assert row
    return int(row[0])


def test_only_the_tries_that_won_count(conn: Connection, queue: TaskQueue, owner: Owner, sequences: list[int]) -> None:
    a, b, c, d = sequences
    stage = open_stage(conn, "owner", owner.fence)
    put(conn, stage, 0, 1, {a: 0, b: 0}, "lost")
    put(conn, stage, 0, 2, {a: 3, b: 2}, "won")
    put(conn, stage, 1, 3, {c: 3}, "won")
    assert carry_out(conn, owner, stage, {(0, 2): 2, (1, 3): 1}) == 3
    assert states(queue) == {State.SUCCEEDED: 2, State.FILTERED: 1, State.ACTIVE: 1}
    task = queue.task("work", a)
    assert task
    assert task.output == "won"
    assert [task.sequence for task in queue.held(owner)] == [d]
    assert conn.execute("SELECT * FROM taskq.stage_results(%s)", (stage,)).fetchall() == [(2, 1), (3, 2)]
    abandon_stage(conn, stage)
    assert staged(conn) == 0


def test_asked_again_it_answers_the_same(
    conn: Connection, queue: TaskQueue, owner: Owner, sequences: list[int]
) -> None:
    stage = open_stage(conn, "owner", owner.fence)
    put(conn, stage, 0, 1, dict.fromkeys(sequences, 3))
    assert carry_out(conn, owner, stage, {(0, 1): 4}) == 4
    queue.release(owner)
    assert carry_out(conn, owner, stage, {(0, 1): 4}) == 4
    assert states(queue) == {State.SUCCEEDED: 4}


@pytest.mark.parametrize("reported", [1, 3])
def test_a_stage_that_is_not_whole_is_refused(
    conn: Connection, queue: TaskQueue, owner: Owner, sequences: list[int], reported: int
) -> None:
    stage = open_stage(conn, "owner", owner.fence)
    put(conn, stage, 0, 1, dict.fromkeys(sequences[:2], 3))
    with pytest.raises(TaskQueueError, match=f"has 2 of the {reported} decisions that part 0 reported"):
        carry_out(conn, owner, stage, {(0, 1): reported})
    assert states(queue) == {State.ACTIVE: 4}
    assert carry_out(conn, owner, stage, {(0, 1): 2}) == 2


def test_two_results_of_one_task_merge_to_the_first(
    conn: Connection, queue: TaskQueue, owner: Owner, sequences: list[int]
) -> None:
    a, b, c, _ = sequences
    stage = open_stage(conn, "owner", owner.fence)
    put(conn, stage, 0, 1, {a: 3, b: 2, c: 3}, "first part")
    put(conn, stage, 1, 2, {a: 0, b: 3, c: 3}, "second part")
    assert carry_out(conn, owner, stage, {(0, 1): 3, (1, 2): 3}) == 3
    ended = [queue.task("work", sequence) for sequence in (a, b, c)]
    assert [(task.state, task.output) for task in ended if task] == [
        (State.FAILED, "second part"),
        (State.FILTERED, "first part"),
        (State.SUCCEEDED, "first part"),
    ]


def test_a_task_that_is_not_held_refuses_all(
    conn: Connection, queue: TaskQueue, owner: Owner, sequences: list[int]
) -> None:
    stage = open_stage(conn, "owner", owner.fence)
    put(conn, stage, 0, 1, dict.fromkeys([*sequences, 999_999], 3))
    with pytest.raises(NotHeld, match="999999"):
        carry_out(conn, owner, stage, {(0, 1): 5})
    assert states(queue) == {State.ACTIVE: 4}


def test_an_owner_that_is_locked_out_changes_nothing(
    conn: Connection, queue: TaskQueue, owner: Owner, sequences: list[int]
) -> None:
    stage = open_stage(conn, "owner", owner.fence)
    put(conn, stage, 0, 1, dict.fromkeys(sequences, 3))
    queue.register("owner")
    with pytest.raises(LeaseLost):
        carry_out(conn, owner, stage, {(0, 1): 4})
    with pytest.raises(LeaseLost):
        carry_out(conn, owner, stage, {})
    with pytest.raises(LeaseLost):
        open_stage(conn, "owner", owner.fence)
    assert states(queue) == {State.ACTIVE: 4}


@pytest.mark.usefixtures("sequences")
def test_a_try_that_comes_late_leaves_nothing(conn: Connection, queue: TaskQueue, owner: Owner) -> None:
    stage = open_stage(conn, "owner", owner.fence)
    check = "SELECT taskq.check_stage(%s, %s, %s)"
    conn.execute(check, (owner.name, owner.fence, stage))
    assert carry_out(conn, owner, stage, {}) == 0
    with pytest.raises(TaskQueueError, match="was committed"), translated():
        conn.execute(check, (owner.name, owner.fence, stage))
    queue.release(owner)
    with pytest.raises(LeaseLost), translated():
        conn.execute(check, (owner.name, owner.fence, stage))


def test_what_the_dead_staged_is_forgotten(conn: Connection, queue: TaskQueue, owner: Owner) -> None:
    ghost = queue.register("ghost")
    dead, living = open_stage(conn, "ghost", ghost.fence), open_stage(conn, "owner", owner.fence)
    foreign = str(uuid4())
    for stage in (dead, living, foreign):
        put(conn, stage, 0, 1, {1: 3, 2: 3})
    assert conn.execute("SELECT taskq.prune_stages()").fetchall() == [(0,)]
    queue.release(ghost)
    assert conn.execute("SELECT taskq.prune_stages()").fetchall() == [(1,)]
    kept = conn.execute("SELECT DISTINCT stage::text FROM taskq.staged").fetchall()
    assert {stage for (stage,) in kept} == {living, foreign}


@pytest.mark.parametrize("fence", [1, 255, 2**31, 2**47 + 5])
def test_a_stage_tells_its_fence(conn: Connection, owner: Owner, fence: int) -> None:
    conn.execute("UPDATE taskq.owner SET fence = %s WHERE name = %s", (fence, owner.name))
    stage = open_stage(conn, owner.name, fence)
    assert conn.execute("SELECT taskq.stage_fence(%s)", (stage,)).fetchall() == [(fence,)]


def test_many_decisions_are_carried_out_in_chunks(conn: Connection, queue: TaskQueue, owner: Owner) -> None:
    count = 120_001
    pushed = queue.push_stream("work", (f"item-{number}" for number in range(count)))
    assert queue.claim("work", owner, count) == count
    stage = open_stage(conn, "owner", owner.fence)
    conn.execute(
        "INSERT INTO taskq.staged (stage, part, attempt, sequence, result)"
        " SELECT %s, 0, 1, g, 3 FROM generate_series(%s::bigint, %s::bigint) g",
        (stage, pushed.first, pushed.last),
    )
    assert carry_out(conn, owner, stage, {(0, 1): count}) == count
    assert states(queue) == {State.SUCCEEDED: count}
