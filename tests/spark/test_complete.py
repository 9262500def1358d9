"""Staged decisions are committed once, all together, by the current owner (sql/stage/stages.sql)."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from airflow_provider_taskq.queue import (
    Decision,
    InvalidTask,
    LeaseLost,
    NewTask,
    NotHeld,
    Owner,
    Result,
    RetryPolicy,
    State,
    Task,
    TaskQueue,
    TaskQueueError,
    TopicPolicy,
    connect,
)
from airflow_provider_taskq.queue.errors import translate_errors
from airflow_provider_taskq.spark.session import describe_error, queue_error
from tests.queue.conftest import await_lock_wait, known, until
from tests.spark.conftest import NUMBER, Complete, Connection, Held, Tasks, open_stage, staged, states

pytestmark = pytest.mark.promise("The decisions and follow-ups of a round are committed together, or not at all")


@pytest.fixture
def sequences(queue: TaskQueue, owner: Owner) -> list[int]:
    """Four tasks that the owner holds."""
    pushed = [task.sequence for task in queue.push("work", ["a", "b", "c", "d"])]
    assert queue.claim("work", owner, 4) == 4
    return pushed


class Stage:
    """A stage of the owner, which executors fill and the driver completes."""

    def __init__(self, conn: Connection, owner: Owner) -> None:
        self.conn = conn
        self.owner = owner
        self.id = open_stage(conn, owner)

    def put(self, part: int, attempt: int, decisions: dict[int, int], note: str = "", by: Any = None) -> None:
        """Stages decisions in a session."""
        for sequence, result in decisions.items():
            (by or self.conn).execute(
                "INSERT INTO taskq.staged VALUES (%s, %s, %s, %s, %s, %s)",
                (self.id, part, attempt, sequence, result, f'"{note}"'),
            )

    def check(self, by: Connection) -> None:
        """Ends an attempt, before its session commits."""
        with translate_errors():
            by.execute("SELECT taskq.check_stage(%s, %s, %s)", (self.id, self.owner.name, self.owner.fence))

    def complete(self, won: dict[tuple[int, int], int], by: Any = None) -> int:
        """Commits the decisions of the attempts that have succeeded, which reported these numbers."""
        parts, attempts = [part for part, _ in won], [attempt for _, attempt in won]
        with translate_errors():
            found = (by or self.conn).execute(
                "SELECT taskq.commit_stage(%s, %s::int[], %s::bigint[], %s::bigint[], %s, %s)",
                (self.id, parts, attempts, list(won.values()), self.owner.name, self.owner.fence),
            )
        return int(found.fetchall()[0][0])

    def close(self) -> list[Any]:
        """Removes the rows of the stage, and returns what was committed."""
        return self.conn.execute("SELECT completed, pushed, results FROM taskq.close_stage(%s)", (self.id,)).fetchall()


@pytest.fixture
def stage(conn: Connection, owner: Owner) -> Stage:
    return Stage(conn, owner)


@pytest.mark.promise("a Spark task runs twice, or an executor is killed")
def test_only_successful_attempts_count(
    stage: Stage, conn: Connection, queue: TaskQueue, owner: Owner, sequences: list[int]
) -> None:
    a, b, c, d = sequences
    stage.put(0, 1, {a: 0, b: 0}, "lost")
    stage.put(0, 2, {a: 3, b: 2}, "won")
    stage.put(1, 3, {c: 3}, "won")
    assert stage.complete({(0, 2): 2, (1, 3): 1}) == 3
    assert states(queue) == {"SUCCEEDED": 2, "FILTERED": 1, "ACTIVE": 1}
    task = queue.task("work", a)
    assert task
    assert task.output == "won"
    assert [task.sequence for task in queue.held(owner)] == [d]
    queue.release(owner)
    assert stage.complete({(0, 2): 2, (1, 3): 1}) == 3, "a repeated commit returns the same, also after the lease"
    assert stage.close() == [(3, 0, [0, 0, 1, 2])]
    assert staged(conn) == 0


@pytest.mark.parametrize(
    ("decided", "reported", "error", "words"),
    [
        (2, 1, TaskQueueError, "has 2 of the 1 rows that part 0 reported"),
        (2, 3, TaskQueueError, "has 2 of the 3 rows that part 0 reported"),
        (5, 5, NotHeld, "999999"),
    ],
    ids=["more than reported", "fewer than reported", "not held"],
)
def test_a_stage_that_is_not_whole_or_names_a_task_that_is_not_held_is_refused(
    stage: Stage,
    queue: TaskQueue,
    sequences: list[int],
    decided: int,
    reported: int,
    error: type[Exception],
    words: str,
) -> None:
    stage.put(0, 1, dict.fromkeys([*sequences, 999_999][:decided], 3))
    with pytest.raises(error, match=words):
        stage.complete({(0, 1): reported})
    assert states(queue) == {"ACTIVE": 4}


@pytest.mark.promise("Two results of a task merge to the first of FAILURE, SUSPENSION, FILTER, SUCCESS")
def test_two_results_of_one_task_merge_to_the_first(stage: Stage, queue: TaskQueue, sequences: list[int]) -> None:
    a, b, c, _ = sequences
    stage.put(0, 1, {a: 3, b: 2, c: 3}, "first part")
    stage.put(1, 2, {a: 0, b: 3, c: 3}, "second part")
    assert stage.complete({(0, 1): 3, (1, 2): 3}) == 3
    ended = [queue.task("work", sequence) for sequence in (a, b, c)]
    assert [(task.state, task.output) for task in ended if task] == [
        (State.FAILED, "second part"),
        (State.FILTERED, "first part"),
        (State.SUCCEEDED, "first part"),
    ]
    for _ in range(2):  # the second time, as a driver whose first answer was lost
        assert stage.close() == [(3, 0, [1, 0, 1, 1])]


@pytest.mark.promise("Held tasks are read again with the same rows, in partitions of nearly equal size")
@pytest.mark.parametrize("parts", [1, 3, 20])
def test_ranges_have_nearly_equal_sizes_without_deferred_and_later_tasks(
    conn: Connection, queue: TaskQueue, owner: Owner, parts: int
) -> None:
    queue.create_topic("other")
    first, second = ([task.sequence for task in queue.push("work", [f"{n}-{i}" for i in range(10)])] for n in "ab")
    queue.push("other", ["x"])
    queue.poll("other", owner)
    assert queue.claim("work", owner, 2) == 2
    conn.execute("SELECT taskq.defer_held_tasks(%s, %s)", (owner.name, owner.fence))
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


def test_a_late_worker_is_fenced_from_the_stage(
    stage: Stage, conn: Connection, queue: TaskQueue, owner: Owner, sequences: list[int]
) -> None:
    stage.put(0, 1, dict.fromkeys(sequences, 3))
    done = Stage(conn, owner)
    done.check(conn)
    assert done.complete({}) == 0
    with pytest.raises(TaskQueueError, match="was committed"):
        done.check(conn)
    queue.register("owner")
    for late in (lambda: stage.complete({(0, 1): 4}), lambda: stage.check(conn), lambda: Stage(conn, owner)):
        with pytest.raises(LeaseLost):
            late()
    assert states(queue) == {"ACTIVE": 4}


def test_an_attempt_that_ends_during_the_commit_leaves_nothing_and_is_not_counted(
    stage: Stage, conn: Connection, dsn: str, sequences: list[int]
) -> None:
    stage.put(0, 1, dict.fromkeys(sequences, 3))
    with connect(dsn) as late, connect(dsn, autocommit=True) as driver, ThreadPoolExecutor() as pool:
        stage.put(0, 2, dict.fromkeys(sequences, 0), by=late)
        stage.check(late)
        done = pool.submit(stage.complete, {(0, 1): 4}, driver)
        waiting = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        until(lambda: done.done() or conn.execute(waiting, (driver.info.backend_pid,)).fetchone() is not None)
        late.commit()
        assert done.result(60) == 4
    assert stage.close() == [(4, 0, [0, 0, 0, 4])]
    assert staged(conn) == 0


def test_an_attempt_that_ends_during_the_commit_is_refused(
    stage: Stage, conn: Connection, dsn: str, sequences: list[int]
) -> None:
    stage.put(0, 1, dict.fromkeys(sequences, 3))
    with connect(dsn) as late, connect(dsn) as driver, ThreadPoolExecutor() as pool:
        stage.put(0, 2, dict.fromkeys(sequences, 0), by=late)
        assert stage.complete({(0, 1): 4}, by=driver) == 4
        checked = pool.submit(stage.check, late)
        await_lock_wait(conn, TaskQueue(late))
        driver.commit()
        with pytest.raises(TaskQueueError, match="was committed"):
            checked.result(60)
    stage.close()
    assert staged(conn) == 0


@pytest.mark.slow
def test_a_hanging_attempt_delays_no_commit_and_is_deleted_with_the_lease(
    stage: Stage, conn: Connection, dsn: str, queue: TaskQueue, owner: Owner, sequences: list[int]
) -> None:
    stage.put(0, 1, dict.fromkeys(sequences, 3))
    with connect(dsn) as still:
        stage.put(0, 2, dict.fromkeys(sequences, 0), by=still)
        stage.check(still)
        assert stage.complete({(0, 1): 4}) == 4
        stage.close()
        still.commit()
    assert states(queue) == {"SUCCEEDED": 4}
    assert staged(conn) == 4
    queue.release(owner)
    queue.expire()
    assert staged(conn) == 0


def test_the_stages_of_lapsed_owners_are_pruned(stage: Stage, conn: Connection, queue: TaskQueue, owner: Owner) -> None:
    ghost = queue.register("ghost")
    dead, foreign = Stage(conn, ghost), Stage(conn, owner)
    foreign.id = str(uuid4())
    for each in (dead, stage, foreign):
        each.put(0, 1, {1: 3, 2: 3})
    assert conn.execute("SELECT taskq.prune_stages()").fetchall() == [(0,)]
    queue.release(ghost)
    assert conn.execute("SELECT taskq.prune_stages()").fetchall() == [(1,)]
    kept = conn.execute("SELECT DISTINCT stage::text FROM taskq.staged").fetchall()
    assert {kept_stage for (kept_stage,) in kept} == {stage.id, foreign.id}


def fill(queue: TaskQueue, stage: Stage, count: int) -> int:
    """Pushes, claims and stages this number of further successes, so that the stage is large; returns the number."""
    queue.push_stream("work", (f"filler-{number}" for number in range(count)))
    assert queue.claim("work", stage.owner, count) == count
    fillers = [task.sequence for task in queue.held(stage.owner, "work") if task.identifier.startswith("filler-")]
    stage.conn.execute(
        "INSERT INTO taskq.staged (stage, part, attempt, sequence, result) SELECT %s, 0, 1, unnest(%s::bigint[]), 3",
        (stage.id, fillers),
    )
    return count


KINDS = {"failure": 0, "snooze": 1, "suspension": 1, "filter": 2, "success": 3}


# More than 50,000 decisions are completed in another way, unless tasks wait for others.
@pytest.mark.parametrize(
    ("others_wait", "fillers"), [(False, 0), (True, 0), pytest.param(False, 50_000, marks=pytest.mark.slow)]
)
def test_a_stage_of_all_kinds_of_decisions_has_the_effect_of_a_completion_or_none(
    stage: Stage, conn: Connection, queue: TaskQueue, owner: Owner, others_wait: bool, fillers: int
) -> None:
    queue.alter_topic("work", TopicPolicy(retry=RetryPolicy(max_attempts=2, base=timedelta(hours=1), jitter=0)))
    pushed = {kind: queue.push("work", [f"{way} {kind}" for way in ("staged", "twin")]) for kind in KINDS}
    if others_wait:
        queue.push("work", [NewTask("dependent", depends_on=[("work", "staged success")])])
    assert queue.claim("work", owner, 100) == 10
    for kind, (one, twin) in pushed.items():
        delay = timedelta(hours=2) if kind == "snooze" else None
        reason = "why" if kind == "failure" else None
        conn.execute(
            "INSERT INTO taskq.staged VALUES (%s, 0, 1, %s, %s, '{\"a\": 1}', %s, %s)",
            (stage.id, one.sequence, KINDS[kind], reason, delay),
        )
        queue.complete(owner, {twin.sequence: Decision(Result(KINDS[kind]), {"a": 1}, reason, delay=delay)})
    count = 5 + fill(queue, stage, fillers)
    check_refusals(stage, pushed["success"], count)
    assert stage.complete({(0, 1): count}) == count
    for kind, (one, twin) in pushed.items():
        mine, theirs = known(queue, one), known(queue, twin)
        same = ("state", "attempt", "output", "error", "crashes", "owner")
        assert [getattr(mine, name) for name in same] == [getattr(theirs, name) for name in same], kind
        assert abs(mine.available_at - theirs.available_at) < timedelta(minutes=10), kind
    assert queue.ready("work") == (1 if others_wait else 0)


def check_refusals(stage: Stage, pushed: list[Task], count: int) -> None:
    """Refuses the stage with a message that cannot be read back, and with a task that was decided before."""
    success, decided = (task.sequence for task in pushed)
    message = "UPDATE taskq.staged SET output = %s WHERE stage = %s AND sequence = %s"
    stage.conn.execute(message, (r'"a NUL \u0000 cannot"', stage.id, success))
    with pytest.raises(TaskQueueError, match=f"the decision on sequence {success} holds a NUL"):
        stage.complete({(0, 1): count})
    stage.conn.execute(message, ('{"a": 1}', stage.id, success))
    stage.put(1, 1, {decided: 3})
    with pytest.raises(NotHeld, match=rf"does not hold 1 of \d+ tasks: sequence {decided}$"):
        stage.complete({(0, 1): count, (1, 1): 1})


# Jobs of Spark, in mode=complete


def test_a_job_ends_its_tasks(
    spark: SparkSession, tasks: Tasks, held: Held, complete: Complete, queue: TaskQueue, conn: Connection
) -> None:
    options = held(40)
    decisions = tasks(options).selectExpr(
        "sequence",
        f"elt({NUMBER} % 4 + 1, 'FAILURE', 'SUSPENSION', 'FILTER', 'SUCCESS') AS result",
        f"to_json(named_struct('seen', {NUMBER})) AS message",
        f"if({NUMBER} % 4 = 0, concat('no luck with ', identifier), null) COLLATE UNICODE AS error",
    )
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        complete(decisions, options)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    assert states(queue) == {"FAILED": 10, "SUSPENDED": 10, "FILTERED": 10, "SUCCEEDED": 10}
    failed = queue.latest("work", ["item-8"])["item-8"]
    assert (failed.output, failed.error) == ({"seen": 8}, "no luck with item-8")
    assert staged(conn) == 0


@pytest.mark.parametrize(
    ("columns", "mode", "error", "words"),
    [
        (["sequence"], "append", InvalidTask, "decisions need a column result: these have sequence"),
        (["sequence", "'SUCCESS' AS result", "'{marked' AS message"], "append", InvalidTask, "is not JSON"),
        (["sequence + 1000 AS sequence", "'SUCCESS' AS result"], "append", NotHeld, "does not hold 10 of 10 tasks"),
        (["sequence", "'SUCCESS' AS result"], "overwrite", TaskQueueError, 'use .mode("append")'),
    ],
    ids=["columns", "on an executor", "at the commit", "overwriting"],
)
def test_invalid_decisions_are_refused_in_one_line_and_change_nothing(
    source: str,
    tasks: Tasks,
    held: Held,
    queue: TaskQueue,
    conn: Connection,
    columns: list[str],
    mode: str,
    error: type[Exception],
    words: str,
) -> None:
    options = held(10)
    writer = tasks(options, partitions=1).selectExpr(*columns).write.format(source).mode(mode)
    with pytest.raises(PySparkException) as failed:
        writer.options(mode="complete", **options).save()
    assert words in describe_error(failed.value)
    assert "marked" not in describe_error(failed.value)
    assert isinstance(queue_error(failed.value), error)
    assert states(queue) == {"ACTIVE": 10}
    assert staged(conn) == 0
