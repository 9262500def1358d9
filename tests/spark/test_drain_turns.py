"""Drains under a condition: one worker decides an identifier in order, and stops after a task that ends badly."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_taskq.queue import (
    Condition,
    Decision,
    NewTask,
    Order,
    Owner,
    Result,
    RetryPolicy,
    State,
    Task,
    TaskQueue,
    TopicPolicy,
    connect,
)
from airflow_provider_taskq.spark import StopReason, by_task, drain, in_arrow
from airflow_provider_taskq.spark.session import DrainSession
from tests.internals import hold_tasks, hold_turns

pytestmark = pytest.mark.promise("Under a condition, one Spark task handles an identifier in order")

Connection = psycopg.Connection[Any]

SINGULAR = Condition.SINGULAR_BY_IDENTIFIER
ON_FAILURE = Condition.SINGULAR_BY_IDENTIFIER_SUSPEND_ON_FAILURE
UNTIL_SUCCESS = Condition.SINGULAR_BY_IDENTIFIER_SUSPEND_UNTIL_SUCCESS
slow = pytest.mark.slow
PANDAS = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")


def claim(conn: Connection, owner: Owner, size: int = 1_000, condition: Condition = SINGULAR) -> int:
    row = conn.execute(
        "SELECT taskq.claim_batch('work', %s, %s, %s, %s)", (owner.name, owner.fence, size, condition)
    ).fetchone()
    assert row
    return int(row[0])


def names(queue: TaskQueue, owner: Owner) -> list[object]:
    return [task.payload for task in queue.held(owner)]


def push(queue: TaskQueue, text: str) -> None:
    """Pushes tasks `a1 b1 a2`: the letter is the identifier, the whole the payload; `a1!9` has the priority 9."""
    for word in text.split():
        name, _, priority = word.partition("!")
        queue.push("work", [NewTask(name[0], name, priority=int(priority or 0))])


def test_a_claim_takes_whole_identifiers_in_order(conn: Connection, queue: TaskQueue, owner: Owner) -> None:
    push(queue, "a1 b1 a2 c1 a3!5 b2")
    assert claim(conn, owner) == 6
    assert names(queue, owner) == ["a3", "a1", "b1", "a2", "c1", "b2"]


def test_a_size_is_a_hard_bound_and_cuts_an_identifier_at_its_end(
    conn: Connection, queue: TaskQueue, owner: Owner
) -> None:
    push(queue, "a1 a2 a3 a4 a5 b1")
    assert claim(conn, owner, 4) == 4
    assert set(names(queue, owner)) == {"a1", "a2", "a3", "b1"}
    assert claim(conn, owner, 4) == 0  # both identifiers are at work


def test_an_identifier_with_an_active_task_is_not_claimed(conn: Connection, queue: TaskQueue, owner: Owner) -> None:
    push(queue, "a1 a2 b1 b2")
    queue.poll("work", queue.register("other"))
    assert claim(conn, owner) == 2
    assert names(queue, owner) == ["b1", "b2"]
    assert queue.poll("work", queue.register("third"), 10, condition=SINGULAR) == []


def test_a_row_locked_by_another_transaction_blocks_the_later_ones_of_its_identifier(
    conn: Connection, queue: TaskQueue, owner: Owner, open_queue: Callable[[], TaskQueue]
) -> None:
    push(queue, "a1 a2 a3 b1")
    other = open_queue()
    hold_tasks(other.conn, 2)
    assert claim(conn, owner) == 2
    assert names(queue, owner) == ["a1", "b1"]


@pytest.mark.parametrize(("condition", "expected"), [(SINGULAR, 2), (ON_FAILURE, 0), (UNTIL_SUCCESS, 0)])
def test_a_claim_skips_the_identifiers_that_a_poll_skips(
    conn: Connection, queue: TaskQueue, owner: Owner, condition: Condition, expected: int
) -> None:
    push(queue, "a1 a2 a3")
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner), Result.FAILURE))
    assert queue.ready("work", condition=condition) == min(1, expected)
    assert claim(conn, owner, condition=condition) == expected


def test_a_retry_that_is_not_due_keeps_its_identifier(conn: Connection, queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", TopicPolicy(retry=RetryPolicy(max_attempts=2)))
    push(queue, "a1 a2 b1")
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner), Result.FAILURE))
    assert claim(conn, owner) == 1
    assert names(queue, owner) == ["b1"]


def test_concurrent_claims_never_share_an_identifier(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", [f"id-{number % 50}" for number in range(5_000)])
    claimed: dict[str, dict[str, int]] = {}

    def work(name: str) -> None:
        with connect(dsn, autocommit=True) as conn:
            mine = TaskQueue(conn)
            owner = mine.register(name)
            for _ in range(20):
                claim(conn, owner, 250)
            held = [task.identifier for task in mine.held(owner)]
            claimed[name] = {identifier: held.count(identifier) for identifier in held}

    workers = [threading.Thread(target=work, args=(f"worker-{number}",)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    everything = [identifier for counts in claimed.values() for identifier in counts]
    assert len(everything) == len(set(everything))
    assert sum(sum(counts.values()) for counts in claimed.values()) <= 5_000
    assert len(everything) > 4


def recorded(folder: Path) -> dict[str, list[str]]:
    """The notes of the workers, in their order, by identifier and partition."""
    return {file.name: file.read_text().split() for file in sorted(folder.iterdir())}


def writing(
    folder: Path, decide: Callable[[str], Decision | Result | None]
) -> Callable[[Task], Decision | Result | None]:
    """Makes a function that notes its task and its partition."""

    def work(task: Task) -> Decision | Result | None:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        with (folder / f"{task.identifier} {context.partitionId()}").open("a") as file:
            file.write(f"{task.payload}\n")
        return decide(str(task.payload))

    return work


@slow
@PANDAS
def test_one_spark_task_processes_an_identifier_in_order_and_a_failure_releases_the_later_tasks(
    spark: SparkSession, dsn: str, queue: TaskQueue, tmp_path: Path
) -> None:
    push(queue, " ".join(f"{name}{number}" for number in range(10) for name in "abcdef") + " e99!7")
    ends = {"a3": Result.FAILURE, "b4": None, "c5": Decision(Result.SUSPENSION), "d6": Result.FILTER}
    work = by_task(writing(tmp_path, lambda name: ends.get(name, Result.SUCCESS)))
    result = drain(spark, "work", "me", work, dsn=dsn, condition=SINGULAR, partitions=3)
    seen = recorded(tmp_path)
    assert len(seen) == 6  # each identifier in one partition only
    assert {name[0]: words for name, words in seen.items()} == {
        "a": [f"a{number}" for number in range(4)],
        "b": [f"b{number}" for number in range(5)],
        "c": [f"c{number}" for number in range(10)],
        "d": [f"d{number}" for number in range(10)],
        "e": ["e99", *(f"e{number}" for number in range(10))],
        "f": [f"f{number}" for number in range(10)],
    }
    assert result.completed == {Result.FAILURE: 1, Result.SUSPENSION: 1, Result.FILTER: 1, Result.SUCCESS: 46}
    assert (result.done, result.undecided) == (49, 12)
    left = [task for task in queue.page("work", size=100) if task.state is State.READY]
    assert [str(task.payload) for task in left if task.identifier == "a"] == [f"a{number}" for number in range(4, 10)]
    assert {task.attempt for task in left} == {0}


@slow
@PANDAS
def test_decisions_that_overtake_an_earlier_task_are_given_back(
    spark: SparkSession, dsn: str, queue: TaskQueue
) -> None:
    queue.create_topic("next")
    push(queue, " ".join(f"{name}{number}" for number in range(5) for name in "abc"))

    def fail_two(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ends = {'"a2"': "FAILURE", '"b1"': "SUSPENSION"}
        for batch in batches:
            results = [ends.get(payload, "SUCCESS") for payload in batch["payload"].to_pylist()]
            push_text = '[{"topic": "next", "identifier": "n"}]'
            rows = {"sequence": batch["sequence"], "result": results, "push": [push_text] * batch.num_rows}
            yield pa.RecordBatch.from_pydict(rows)

    result = drain(spark, "work", "me", in_arrow(fail_two), dsn=dsn, condition=UNTIL_SUCCESS, rounds=None)
    assert result.completed == {Result.FAILURE: 1, Result.SUSPENSION: 1, Result.SUCCESS: 8}
    assert (result.done, result.undecided, result.pushed) == (10, 5, 8)
    assert result.stop_reason is StopReason.EMPTY
    assert queue.count("next")["next"][State.READY].count == 8


@slow
@PANDAS
def test_a_topic_is_drained_in_order_if_most_tasks_have_one_identifier(
    spark: SparkSession, dsn: str, queue: TaskQueue
) -> None:
    total = 60_000
    queue.push_stream("work", (NewTask("hot" if n % 10 else f"cold-{n}", n) for n in range(total)))

    def in_order(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        last = -1
        for batch in batches:
            hot = [
                n
                for n, name in zip(batch["sequence"].to_pylist(), batch["identifier"].to_pylist(), strict=True)
                if name == "hot"
            ]
            if hot and (hot != sorted(hot) or hot[0] < last):
                raise ValueError("out of order")
            last = hot[-1] if hot else last
            yield pa.RecordBatch.from_pydict({"sequence": batch["sequence"], "result": ["SUCCESS"] * batch.num_rows})

    result = drain(spark, "work", "me", in_arrow(in_order), dsn=dsn, condition=ON_FAILURE, size=25_000, rounds=None)
    assert (result.claimed, result.done, result.rounds) == (total, total, 3)
    assert {state: count.count for state, count in queue.count("work")["work"].items()} == {State.SUCCEEDED: total}


@slow
@PANDAS
def test_dataframes_are_ordered_by_turn(spark: SparkSession, dsn: str, queue: TaskQueue) -> None:
    push(queue, "a1 b1 a2 b2 a3 b3")
    seen: list[Any] = []

    def look(tasks: DataFrame) -> DataFrame:
        seen.extend(tuple(row) for row in tasks.selectExpr("spark_partition_id()", "identifier", "payload").collect())
        return tasks.selectExpr("sequence", "'SUCCESS' AS result")

    assert drain(spark, "work", "me", look, dsn=dsn, condition=SINGULAR, partitions=2).done == 6
    for name in "ab":
        mine = [(part, payload) for part, identifier, payload in seen if identifier == name]
        assert len({part for part, _ in mine}) == 1
        assert [payload for _, payload in mine] == [f'"{name}{number}"' for number in (1, 2, 3)]


def succeed(tasks: DataFrame) -> DataFrame:
    return tasks.selectExpr("sequence", "'SUCCESS' AS result")


@slow
@PANDAS
def test_a_drain_of_rounds_waits_for_tasks_that_a_concurrent_poll_examines_and_leaves(
    spark: SparkSession, dsn: str, queue: TaskQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(queue, "a1 a2")
    claim_as_ever = DrainSession.claim
    claimed: list[int] = []

    def claim_and_let_go(holding: DrainSession, size: int, order: Order) -> int:
        claimed.append(claim_as_ever(holding, size, order))
        if len(claimed) == 3:
            other.rollback()
        return claimed[-1]

    monkeypatch.setattr(DrainSession, "claim", claim_and_let_go)
    with connect(dsn) as other:
        hold_turns(other)  # as a poll does that began earlier
        result = drain(spark, "work", "me", succeed, dsn=dsn, condition=SINGULAR, size=1, rounds=None)
    assert claimed == [0, 0, 0, 1, 1, 0]
    assert (result.claimed, result.done, result.rounds, result.stop_reason) == (2, 2, 2, StopReason.EMPTY)


@slow
@PANDAS
def test_a_wait_for_a_concurrent_poll_ends_at_the_deadline_and_a_single_round_does_not_wait(
    spark: SparkSession, dsn: str, queue: TaskQueue
) -> None:
    push(queue, "a1 a2")
    with connect(dsn) as other:
        hold_turns(other)  # as a poll does that began earlier
        soon = timedelta(seconds=2)
        waited = drain(spark, "work", "me", succeed, dsn=dsn, condition=SINGULAR, rounds=None, deadline=soon)
        assert (waited.done, waited.stop_reason) == (0, StopReason.DEADLINE)
        assert drain(spark, "work", "me", succeed, dsn=dsn, condition=SINGULAR).stop_reason is StopReason.EMPTY
    assert queue.owners() == []
