"""Staged decisions are committed once, all together, by the current owner (sql/api/staged_decisions.sql)."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from airflow_provider_taskq.queue import (
    Decision,
    LeaseLost,
    NewTask,
    NotHeld,
    Owner,
    Result,
    RetryPolicy,
    State,
    TaskQueue,
    TaskQueueError,
    TopicPolicy,
    connect,
)
from airflow_provider_taskq.queue.errors import translate_errors
from airflow_provider_taskq.spark.writers import abandon_stage, open_stage
from tests.queue.conftest import await_lock_wait, until

pytestmark = pytest.mark.promise("The decisions and follow-ups of a round are committed together, or not at all")

Connection = psycopg.Connection[Any]

CHECK = "SELECT taskq.check_stage(%s, %s, %s)"


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


def complete_stage(conn: Connection, owner: Owner, stage: str, won: dict[tuple[int, int], int]) -> int:
    parts, attempts = [part for part, _ in won], [attempt for _, attempt in won]
    with translate_errors():
        row = conn.execute(
            "SELECT taskq.complete_staged(%s, %s, %s, %s::int[], %s::bigint[], %s::bigint[])",
            (owner.name, owner.fence, stage, parts, attempts, list(won.values())),
        ).fetchone()
    assert row
    return int(row[0])


def finish_stage(conn: Connection, stage: str) -> list[Any]:
    return conn.execute("SELECT * FROM taskq.finish_stage(%s)", (stage,)).fetchall()


def states(queue: TaskQueue) -> dict[State, int]:
    return {state: count.count for state, count in queue.count("work")["work"].items()}


def staged(conn: Connection) -> int:
    row = conn.execute("SELECT count(*) FROM taskq.staged").fetchone()
    assert row
    return int(row[0])


@pytest.mark.promise("a Spark task runs twice, or an executor is killed")
def test_only_successful_attempts_count(conn: Connection, queue: TaskQueue, owner: Owner, sequences: list[int]) -> None:
    a, b, c, d = sequences
    stage = open_stage(conn, "owner", owner.fence)
    put(conn, stage, 0, 1, {a: 0, b: 0}, "lost")
    put(conn, stage, 0, 2, {a: 3, b: 2}, "won")
    put(conn, stage, 1, 3, {c: 3}, "won")
    assert finish_stage(conn, stage) == []
    assert staged(conn) == 5
    assert complete_stage(conn, owner, stage, {(0, 2): 2, (1, 3): 1}) == 3
    assert states(queue) == {State.SUCCEEDED: 2, State.FILTERED: 1, State.ACTIVE: 1}
    task = queue.task("work", a)
    assert task
    assert task.output == "won"
    assert [task.sequence for task in queue.held(owner)] == [d]
    assert finish_stage(conn, stage) == [(3, 0, [0, 0, 1, 2])]
    assert staged(conn) == 0


def test_a_repeated_commit_returns_the_same(
    conn: Connection, queue: TaskQueue, owner: Owner, sequences: list[int]
) -> None:
    stage = open_stage(conn, "owner", owner.fence)
    put(conn, stage, 0, 1, dict.fromkeys(sequences, 3))
    assert complete_stage(conn, owner, stage, {(0, 1): 4}) == 4
    queue.release(owner)
    assert complete_stage(conn, owner, stage, {(0, 1): 4}) == 4
    assert states(queue) == {State.SUCCEEDED: 4}


@pytest.mark.parametrize("reported", [1, 3])
def test_an_incomplete_stage_is_refused(
    conn: Connection, queue: TaskQueue, owner: Owner, sequences: list[int], reported: int
) -> None:
    stage = open_stage(conn, "owner", owner.fence)
    put(conn, stage, 0, 1, dict.fromkeys(sequences[:2], 3))
    with pytest.raises(TaskQueueError, match=f"has 2 of the {reported} decisions that part 0 reported"):
        complete_stage(conn, owner, stage, {(0, 1): reported})
    assert states(queue) == {State.ACTIVE: 4}
    assert complete_stage(conn, owner, stage, {(0, 1): 2}) == 2


@pytest.mark.promise("Two results of a task merge to the first of FAILURE, SUSPENSION, FILTER, SUCCESS")
def test_two_results_of_one_task_merge_to_the_first(
    conn: Connection, queue: TaskQueue, owner: Owner, sequences: list[int]
) -> None:
    a, b, c, _ = sequences
    stage = open_stage(conn, "owner", owner.fence)
    put(conn, stage, 0, 1, {a: 3, b: 2, c: 3}, "first part")
    put(conn, stage, 1, 2, {a: 0, b: 3, c: 3}, "second part")
    assert complete_stage(conn, owner, stage, {(0, 1): 3, (1, 2): 3}) == 3
    ended = [queue.task("work", sequence) for sequence in (a, b, c)]
    assert [(task.state, task.output) for task in ended if task] == [
        (State.FAILED, "second part"),
        (State.FILTERED, "first part"),
        (State.SUCCEEDED, "first part"),
    ]
    for _ in range(2):  # the second time, as a driver whose first answer was lost
        assert finish_stage(conn, stage) == [(3, 0, [1, 0, 1, 1])]


@pytest.mark.promise("Held tasks are read again with the same rows, in partitions of nearly equal size")
@pytest.mark.parametrize("parts", [1, 3, 4, 20])
def test_ranges_have_nearly_equal_sizes_without_deferred_and_later_tasks(
    conn: Connection, queue: TaskQueue, owner: Owner, parts: int
) -> None:
    queue.create_topic("other")
    first, second = ([task.sequence for task in queue.push("work", [f"{n}-{i}" for i in range(10)])] for n in "ab")
    queue.push("other", ["x"])
    queue.poll("other", owner)
    assert queue.claim("work", owner, 2) == 2
    assert conn.execute("SELECT taskq.defer_held_tasks(%s, %s)", (owner.name, owner.fence)).fetchall() == [(3,)]
    assert queue.claim("work", owner, 8) == 8
    [(now,)] = conn.execute("SELECT clock_timestamp()").fetchall()
    assert queue.claim("work", owner, 5) == 5

    def ranges(*arguments: object) -> list[Any]:
        statement = "SELECT * FROM taskq.held_bounds(%s, %s, %s, %s, %s)"
        return conn.execute(statement, (owner.name, owner.fence, *arguments)).fetchall()

    def expected(held: list[int]) -> list[Any]:
        sizes = [len(held) // parts + (part < len(held) % parts) for part in range(min(parts, len(held)))]
        starts = [sum(sizes[:part]) for part in range(len(sizes))]
        return [(held[at], held[at + size - 1], size) for at, size in zip(starts, sizes, strict=True)]

    assert ranges("work", parts, now) == expected(first[2:])
    assert ranges("work", parts, None) == ranges(None, parts, None) == expected(first[2:] + second[:5])
    later = "SELECT sequence FROM taskq.held_slice(%s, %s, 'work', %s, %s, %s)"
    slices = conn.execute(later, (owner.name, owner.fence, first[0], second[-1], now)).fetchall()
    assert [row[0] for row in slices] == first[2:]


def test_a_task_that_is_not_held_refuses_all(
    conn: Connection, queue: TaskQueue, owner: Owner, sequences: list[int]
) -> None:
    stage = open_stage(conn, "owner", owner.fence)
    put(conn, stage, 0, 1, dict.fromkeys([*sequences, 999_999], 3))
    with pytest.raises(NotHeld, match="999999"):
        complete_stage(conn, owner, stage, {(0, 1): 5})
    assert states(queue) == {State.ACTIVE: 4}


def test_an_owner_that_is_locked_out_changes_nothing(
    conn: Connection, queue: TaskQueue, owner: Owner, sequences: list[int]
) -> None:
    stage = open_stage(conn, "owner", owner.fence)
    put(conn, stage, 0, 1, dict.fromkeys(sequences, 3))
    queue.register("owner")
    with pytest.raises(LeaseLost):
        complete_stage(conn, owner, stage, {(0, 1): 4})
    with pytest.raises(LeaseLost):
        complete_stage(conn, owner, stage, {})
    with pytest.raises(LeaseLost):
        open_stage(conn, "owner", owner.fence)
    assert states(queue) == {State.ACTIVE: 4}


@pytest.mark.usefixtures("sequences")
def test_a_late_attempt_leaves_nothing(conn: Connection, queue: TaskQueue, owner: Owner) -> None:
    stage = open_stage(conn, "owner", owner.fence)
    conn.execute(CHECK, (owner.name, owner.fence, stage))
    assert complete_stage(conn, owner, stage, {}) == 0
    with pytest.raises(TaskQueueError, match="was committed"), translate_errors():
        conn.execute(CHECK, (owner.name, owner.fence, stage))
    queue.release(owner)
    with pytest.raises(LeaseLost), translate_errors():
        conn.execute(CHECK, (owner.name, owner.fence, stage))


def test_an_attempt_that_ends_during_the_commit_leaves_nothing_and_is_not_counted(
    conn: Connection, dsn: str, owner: Owner, sequences: list[int]
) -> None:
    stage = open_stage(conn, "owner", owner.fence)
    put(conn, stage, 0, 1, dict.fromkeys(sequences, 3))
    with connect(dsn) as late, connect(dsn, autocommit=True) as driver, ThreadPoolExecutor() as pool:
        put(late, stage, 0, 2, dict.fromkeys(sequences, 0))
        late.execute(CHECK, (owner.name, owner.fence, stage))
        done = pool.submit(complete_stage, driver, owner, stage, {(0, 1): 4})
        waiting = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        until(lambda: done.done() or conn.execute(waiting, (driver.info.backend_pid,)).fetchone() is not None)
        late.commit()
        assert done.result(60) == 4
    assert finish_stage(conn, stage) == [(4, 0, [0, 0, 0, 4])]
    assert staged(conn) == 0


def test_an_attempt_that_ends_during_the_commit_is_refused(
    conn: Connection, dsn: str, owner: Owner, sequences: list[int]
) -> None:
    stage = open_stage(conn, "owner", owner.fence)
    put(conn, stage, 0, 1, dict.fromkeys(sequences, 3))
    with connect(dsn) as late, connect(dsn) as driver, ThreadPoolExecutor() as pool:
        put(late, stage, 0, 2, dict.fromkeys(sequences, 0))
        assert complete_stage(driver, owner, stage, {(0, 1): 4}) == 4
        checked = pool.submit(late.execute, CHECK, (owner.name, owner.fence, stage))
        await_lock_wait(conn, TaskQueue(late))
        driver.commit()
        with pytest.raises(TaskQueueError, match="was committed"), translate_errors():
            checked.result(60)
    abandon_stage(conn, stage)
    assert staged(conn) == 0


def test_a_hanging_attempt_delays_no_commit_and_is_deleted_with_the_lease(
    conn: Connection, dsn: str, queue: TaskQueue, owner: Owner, sequences: list[int]
) -> None:
    stage = open_stage(conn, "owner", owner.fence)
    put(conn, stage, 0, 1, dict.fromkeys(sequences, 3))
    with connect(dsn) as still:
        put(still, stage, 0, 2, dict.fromkeys(sequences, 0))
        still.execute(CHECK, (owner.name, owner.fence, stage))
        assert complete_stage(conn, owner, stage, {(0, 1): 4}) == 4
        abandon_stage(conn, stage)
        still.commit()
    assert states(queue) == {State.SUCCEEDED: 4}
    assert staged(conn) == 4
    queue.release(owner)
    queue.expire()
    assert staged(conn) == 0


def test_the_stages_of_lapsed_owners_are_pruned(conn: Connection, queue: TaskQueue, owner: Owner) -> None:
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


@pytest.mark.parametrize(("result", "state"), [(3, State.SUCCEEDED), (0, State.FAILED)])
def test_many_decisions_are_committed_together(
    conn: Connection, queue: TaskQueue, owner: Owner, result: int, state: State
) -> None:
    count = 120_001
    pushed = queue.push_stream("work", (f"item-{number}" for number in range(count)))
    assert queue.claim("work", owner, count) == count
    stage = open_stage(conn, "owner", owner.fence)
    conn.execute(
        "INSERT INTO taskq.staged (stage, part, attempt, sequence, result)"
        " SELECT %s, 0, 1, g, %s FROM generate_series(%s::bigint, %s::bigint) g",
        (stage, result, pushed.first, pushed.last),
    )
    assert complete_stage(conn, owner, stage, {(0, 1): count}) == count
    assert states(queue) == {state: count}


def fill(conn: Connection, queue: TaskQueue, owner: Owner, stage: str, count: int = 50_000) -> int:
    """Pushes, claims and stages this number of further successes, so that the stage is large; returns the number."""
    queue.push_stream("work", (f"filler-{number}" for number in range(count)))
    assert queue.claim("work", owner, count) == count
    conn.execute(
        "INSERT INTO taskq.staged (stage, part, attempt, sequence, result)"
        " SELECT %s, 0, 1, sequence, 3 FROM taskq.task_info WHERE topic = 'work' AND identifier LIKE 'filler-%%'",
        (stage,),
    )
    return count


@pytest.mark.parametrize(("others_wait", "fillers"), [(False, 0), (True, 0), (False, 50_000)])
def test_a_stage_of_all_kinds_of_decisions_has_the_effect_of_a_completion(
    conn: Connection, queue: TaskQueue, owner: Owner, others_wait: bool, fillers: int
) -> None:
    queue.alter_topic("work", TopicPolicy(retry=RetryPolicy(max_attempts=2, base=timedelta(hours=1), jitter=0)))
    kinds = {"failure": 0, "snooze": 1, "suspension": 1, "filter": 2, "success": 3}
    pushed = {kind: queue.push("work", [f"{way} {kind}" for way in ("staged", "twin")]) for kind in kinds}
    if others_wait:
        queue.push("work", [NewTask("dependent", depends_on=[("work", "staged success")])])
    assert queue.claim("work", owner, 100) == 10
    stage = open_stage(conn, "owner", owner.fence)
    for kind, (one, twin) in pushed.items():
        delay = timedelta(hours=2) if kind == "snooze" else None
        reason = "why" if kind == "failure" else None
        conn.execute(
            "INSERT INTO taskq.staged VALUES (%s, 0, 1, %s, %s, '{\"a\": 1}', %s, %s)",
            (stage, one.sequence, kinds[kind], reason, delay),
        )
        queue.complete(owner, {twin.sequence: Decision(Result(kinds[kind]), {"a": 1}, reason, delay=delay)})
    count = 5 + fill(conn, queue, owner, stage, fillers)
    assert complete_stage(conn, owner, stage, {(0, 1): count}) == count
    for kind, (one, twin) in pushed.items():
        mine, theirs = queue.task("work", one.sequence), queue.task("work", twin.sequence)
        assert mine
        assert theirs
        same = ("state", "attempt", "output", "error", "crashes", "owner")
        assert [getattr(mine, name) for name in same] == [getattr(theirs, name) for name in same], kind
        assert abs(mine.available_at - theirs.available_at) < timedelta(minutes=10), kind
    assert queue.ready("work") == (1 if others_wait else 0)


@pytest.mark.parametrize("fillers", [0, 50_000])
def test_a_message_that_cannot_be_read_back_refuses_all_of_a_stage(
    conn: Connection, queue: TaskQueue, owner: Owner, sequences: list[int], fillers: int
) -> None:
    stage = open_stage(conn, "owner", owner.fence)
    fill(conn, queue, owner, stage, fillers)
    put(conn, stage, 0, 1, dict.fromkeys(sequences[1:], 3), r"\u00e9 can")
    put(conn, stage, 0, 1, {sequences[0]: 3}, r"a NUL \u0000 cannot")
    with pytest.raises(TaskQueueError, match=f"the decision on sequence {sequences[0]} holds a NUL"):
        complete_stage(conn, owner, stage, {(0, 1): 4 + fillers})
    assert states(queue) == {State.ACTIVE: 4 + fillers}


@pytest.mark.parametrize(("before", "fillers"), [(1, 0), (3, 0), (3, 50_000)])
def test_a_stage_with_a_task_that_was_decided_before_is_refused(
    conn: Connection, queue: TaskQueue, owner: Owner, sequences: list[int], before: int, fillers: int
) -> None:
    queue.complete(owner, {sequences[2]: Result(before)})
    stage = open_stage(conn, "owner", owner.fence)
    put(conn, stage, 0, 1, dict.fromkeys(sequences, 3))
    count = 4 + fill(conn, queue, owner, stage, fillers)
    with pytest.raises(NotHeld, match=rf"does not hold 1 of {count} tasks: sequence {sequences[2]}$"):
        complete_stage(conn, owner, stage, {(0, 1): count})
