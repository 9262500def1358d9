"""drain: claim, keep, transform, commit, release; under a condition one worker decides an identifier in order."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_taskq.queue import (
    Condition,
    Decision,
    InvalidTask,
    LeaseLost,
    NewTask,
    Order,
    Owner,
    Result,
    RetryPolicy,
    State,
    Task,
    TaskQueue,
    TaskQueueError,
    TooManyUndecided,
    TopicPolicy,
    UnknownTopic,
    connect,
)
from airflow_provider_taskq.spark import StopReason, TaskQDataSource, by_task, drain, in_arrow
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.session import DrainSession
from airflow_provider_taskq.worker import UNDECIDED
from tests.internals import hold_tasks, hold_turns
from tests.queue.conftest import lapse, until
from tests.spark.conftest import NUMBER, Connection, Drained, Push, states, succeed

pytestmark = [
    pytest.mark.promise("A drain claims round by round within its limits, and releases what it did not begin"),
    pytest.mark.promise("Under a condition, one Spark task handles an identifier in order"),
]


def no_column(tasks: DataFrame) -> DataFrame:
    return tasks.selectExpr("no_such_column")


def invalid(tasks: DataFrame) -> DataFrame:
    return tasks.selectExpr("sequence", "'DONE' AS result")


def test_a_topic_is_drained(drained: Drained, queue: TaskQueue, push: Push) -> None:
    push(100)
    work = lambda tasks: tasks.selectExpr("sequence", f"{NUMBER} % 4 AS result").where(f"{NUMBER} >= 20")  # noqa: E731
    with pytest.raises(TooManyUndecided, match="20 tasks of topic 'work' are undecided"):
        drained(work, max_undecided=19, size=20)
    result = drained(work, max_undecided=20)
    assert (result.claimed, result.resumed, result.done, result.undecided) == (100, 0, 80, 20)
    assert result.completed == dict.fromkeys(Result, 20)
    assert result.rate > 0
    assert states(queue) == {"READY": 20, "FAILED": 20, "SUSPENDED": 20, "FILTERED": 20, "SUCCEEDED": 20}
    assert queue.owners() == []
    assert queue.latest("work", ["item-3"])["item-3"].attempt == 0


@pytest.mark.promise("the Spark driver is killed")
def test_a_drain_processes_the_tasks_that_its_name_holds_in_rounds_of_their_own(
    drained: Drained, queue: TaskQueue, push: Push
) -> None:
    push(20)
    queue.claim("work", queue.register("me"), 5)
    result = drained(succeed, size=7)
    assert (result.claimed, result.rounds, result.done) == (12, 4, 12), "two, two and one, and a round of seven"
    assert states(queue) == {"READY": 8, "SUCCEEDED": 12}


def test_a_drain_of_a_claim_takes_its_tasks_only_and_after_an_error_they_stay_held(
    spark: SparkSession, dsn: str, queue: TaskQueue, push: Push
) -> None:
    push(5)
    gate = queue.register("gate", timedelta(minutes=20))
    queue.claim("work", gate, 3)
    with pytest.raises(Exception, match="no_such_column"):
        drain(spark, "work", "gate", no_column, dsn=dsn, claim=gate.fence)
    holder = queue.owner("gate", gate.fence)
    assert holder is not None
    assert (holder.lease, len(queue.held(holder))) == (timedelta(minutes=20), 3)
    result = drain(spark, "work", "gate", succeed, dsn=dsn, claim=gate.fence, rounds=None)
    assert (result.claimed, result.resumed, result.done) == (0, 3, 3)
    assert states(queue) == {"READY": 2, "SUCCEEDED": 3}
    queue.register("gate")
    with pytest.raises(LeaseLost, match="the name was registered again"):
        drain(spark, "work", "gate", succeed, dsn=dsn, claim=gate.fence)


@pytest.mark.parametrize(
    ("topic", "transform", "error", "words"),
    [
        ("work", no_column, Exception, "no_such_column"),
        ("work", invalid, InvalidTask, "unknown result 'DONE'"),
        ("work", lambda _: None, TaskQueueError, "returned a NoneType, not a DataFrame"),
        ("nowhere", succeed, UnknownTopic, "'nowhere'"),
    ],
    ids=["in the plan", "on an executor", "no DataFrame", "unknown topic"],
)
def test_after_an_error_all_tasks_are_given_back(
    spark: SparkSession,
    dsn: str,
    queue: TaskQueue,
    push: Push,
    topic: str,
    transform: Callable[[DataFrame], DataFrame],
    error: type[Exception],
    words: str,
) -> None:
    push(10)
    with pytest.raises(error, match=words):
        drain(spark, topic, "me", transform, dsn=dsn, partitions=1)
    assert states(queue) == {"READY": 10}
    assert queue.latest("work", ["item-3"])["item-3"].attempt == 0
    assert queue.owners() == []


@pytest.mark.promise("Upkeep takes milliseconds and waits for no session")
def test_a_drain_carries_out_upkeep_at_its_start_and_while_spark_works(
    drained: Drained, queue: TaskQueue, push: Push
) -> None:
    queue.create_topic("other", keep_succeeded=0)
    other = queue.register("other")
    queue.push("other", [f"{number}" for number in range(1_200)])  # more than one call removes
    queue.complete(other, dict.fromkeys(queue.poll("other", other, 1_200), Result.SUCCESS))
    push(10)

    def slow(tasks: DataFrame) -> DataFrame:
        until(lambda: queue.count_tasks("other") == 0)
        queue.push("other", ["late"])
        dead = queue.register("dead")
        queue.poll("other", dead)
        lapse(queue, dead)
        until(lambda: queue.count_tasks("other", state="READY") == 1)
        return succeed(tasks)

    assert drained(slow, lease=timedelta(seconds=9)).done == 10
    assert not [thread for thread in threading.enumerate() if thread.name == "taskq upkeep"]


def test_two_databases_in_one_session_do_not_mix(drained: Drained, own_dsn: str, queue: TaskQueue, push: Push) -> None:
    with connect(own_dsn) as conn:
        TaskQueue(conn).create_topic("work")
        TaskQueue(conn).push("work", ["elsewhere"])
    push(3)
    seen = {}

    def nested(tasks: DataFrame) -> DataFrame:
        seen["other"] = drained(succeed, dsn=own_dsn).done
        return succeed(tasks)

    assert drained(nested).done == 3
    assert seen == {"other": 1}
    assert states(queue) == {"SUCCEEDED": 3}


# Under a condition, one worker decides an identifier in order, and stops after a task that ends badly


SINGULAR = Condition.SINGULAR_BY_IDENTIFIER
ON_FAILURE = Condition.SINGULAR_BY_IDENTIFIER_SUSPEND_ON_FAILURE
UNTIL_SUCCESS = Condition.SINGULAR_BY_IDENTIFIER_SUSPEND_UNTIL_SUCCESS


def claim(conn: Connection, owner: Owner, size: int = 1_000, condition: Condition = SINGULAR) -> int:
    row = conn.execute(
        "SELECT taskq.claim_batch('work', %s, %s, %s, %s)", (owner.name, owner.fence, size, condition)
    ).fetchone()
    assert row
    return int(row[0])


def push(queue: TaskQueue, text: str) -> None:
    """Pushes tasks `a1 b1 a2`: the letter is the identifier, the whole the payload; `a1!9` has the priority 9."""
    for word in text.split():
        name, _, priority = word.partition("!")
        queue.push("work", [NewTask(name[0], name, priority=int(priority or 0))])


def poll_first(other: TaskQueue) -> None:
    other.poll("work", other.register("other"))
    other.conn.commit()


def lock_second(other: TaskQueue) -> None:
    hold_tasks(other.conn, 2)


def fail_first(other: TaskQueue) -> None:
    owner = other.register("other")
    other.complete(owner, dict.fromkeys(other.poll("work", owner), Result.FAILURE))
    other.conn.commit()


def retry_first(other: TaskQueue) -> None:
    other.alter_topic("work", TopicPolicy(retry=RetryPolicy(max_attempts=2)))
    fail_first(other)


@pytest.mark.parametrize(
    ("pushed", "arrange", "condition", "size", "claimed"),
    [
        pytest.param("a1 b1 a2 c1 a3!5 b2", None, SINGULAR, 9, "a3 a1 b1 a2 c1 b2", id="in order"),
        pytest.param("a1 a2 a3 a4 a5 b1", None, SINGULAR, 4, "a1 a2 a3 b1", id="cut at its end"),
        pytest.param("a1 a2 b1 b2", poll_first, SINGULAR, 9, "b1 b2", id="with an active task"),
        pytest.param("a1 a2 a3 b1", lock_second, SINGULAR, 9, "a1 b1", id="with a row that another session locks"),
        pytest.param("a1 a2 b1", retry_first, SINGULAR, 9, "b1", id="with a retry that is not due"),
        pytest.param("a1 a2 a3", fail_first, SINGULAR, 9, "a2 a3", id="with a failure"),
        pytest.param("a1 a2 a3", fail_first, ON_FAILURE, 9, "", id="suspended on failure"),
        pytest.param("a1 a2 a3", fail_first, UNTIL_SUCCESS, 9, "", id="suspended until success"),
    ],
)
def test_a_claim_takes_whole_identifiers_in_order_and_skips_those_that_a_poll_skips(
    conn: Connection,
    queue: TaskQueue,
    owner: Owner,
    open_queue: Callable[[], TaskQueue],
    pushed: str,
    arrange: Callable[[TaskQueue], None] | None,
    condition: Condition,
    size: int,
    claimed: str,
) -> None:
    push(queue, pushed)
    if arrange is not None:
        arrange(open_queue())
    assert claim(conn, owner, size, condition) == len(claimed.split())
    assert [task.payload for task in queue.held(owner)] == claimed.split()
    assert claim(conn, owner, size, condition) == 0  # the identifiers are at work
    assert queue.poll("work", queue.register("third"), 9, condition=condition) == []


def test_concurrent_claims_never_share_an_identifier(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", [f"id-{number % 20}" for number in range(1_000)])
    claimed: dict[str, dict[str, int]] = {}

    def work(name: str) -> None:
        with connect(dsn, autocommit=True) as conn:
            mine = TaskQueue(conn)
            owner = mine.register(name)
            for _ in range(20):
                claim(conn, owner, 50)
            held = [task.identifier for task in mine.held(owner)]
            claimed[name] = {identifier: held.count(identifier) for identifier in held}

    workers = [threading.Thread(target=work, args=(f"worker-{number}",)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    everything = [identifier for counts in claimed.values() for identifier in counts]
    assert len(everything) == len(set(everything)) > 4
    assert sum(sum(counts.values()) for counts in claimed.values()) <= 1_000


def recorded(folder: Path) -> dict[str, list[str]]:
    """The notes of the workers, in their order, by identifier and partition."""
    return {file.name: file.read_text().split() for file in sorted(folder.iterdir())}


def writing(folder: Path, decide: Callable[[str], Decision | Result]) -> Callable[[Task], Decision | Result]:
    """Makes a function that notes its task and its partition."""

    def work(task: Task) -> Decision | Result:
        context = TaskContext.get()
        assert context is not None
        with (folder / f"{task.identifier} {context.partitionId()}").open("a") as file:
            file.write(f"{task.payload}\n")
        return decide(str(task.payload))

    return work


def test_one_spark_task_processes_an_identifier_in_order_and_a_failure_releases_the_later_tasks(
    drained: Drained, queue: TaskQueue, tmp_path: Path
) -> None:
    push(queue, " ".join(f"{name}{number}" for number in range(10) for name in "abcdef") + " e99!7")
    ends: dict[str, Decision | Result] = {"a3": Result.FAILURE, "b4": UNDECIDED, "c5": Decision(Result.SUSPENSION)}
    ends["d6"] = Result.FILTER
    snooze = Decision(Result.SUSPENSION, delay=timedelta(hours=1))
    work = by_task(writing(tmp_path, lambda name: snooze if name == "f7" else ends.get(name, Result.SUCCESS)))
    result = drained(work, condition=SINGULAR, partitions=3, max_undecided=1)
    seen = recorded(tmp_path)
    assert len(seen) == 6  # each identifier in one partition only
    assert {name[0]: words for name, words in seen.items()} == {
        "a": [f"a{number}" for number in range(4)],
        "b": [f"b{number}" for number in range(5)],
        "c": [f"c{number}" for number in range(10)],
        "d": [f"d{number}" for number in range(10)],
        "e": ["e99", *(f"e{number}" for number in range(10))],
        "f": [f"f{number}" for number in range(8)],
    }
    assert result.completed == {Result.FAILURE: 1, Result.SUSPENSION: 2, Result.FILTER: 1, Result.SUCCESS: 43}
    assert (result.done, result.undecided, result.returned) == (47, 1, 13)
    left = [task for task in queue.page("work", size=100) if task.state is State.READY]
    assert [str(task.payload) for task in left if task.identifier == "a"] == [f"a{number}" for number in range(4, 10)]
    assert {task.attempt for task in left} == {0}


def sessions_of(spark: SparkSession) -> Any:
    """The class of the JVM that knows the active session of each thread."""
    assert spark._jvm is not None
    return spark._jvm.org.apache.spark.sql.classic.SparkSession


def clear_active_session(spark: SparkSession) -> None:
    """Forgets the active session of this thread, which createDataFrame has set."""
    sessions_of(spark).clearActiveSession()


@pytest.mark.promise("A drain runs in any thread and with any session")
def test_drains_run_in_threads_in_a_new_session_and_in_a_batch_of_a_stream(
    spark: SparkSession, dsn: str, queue: TaskQueue, tmp_path: Path
) -> None:
    topics = ["one", "two", "three"]
    for topic in topics:
        queue.create_topic(topic)
        queue.push(topic, [f"item-{number}" for number in range(20)])

    def drain_topic(topic: str) -> int:
        session = spark if topic == "one" else spark.newSession()
        return drain(session, topic, f"drain of {topic}", succeed, dsn=dsn).done

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(drain_topic, topics)) == [20, 20, 20]

    def push_in_thread() -> None:
        session = spark.newSession()
        session.dataSource.register(TaskQDataSource.with_connection(ConnectionInfo.resolve(dsn), "in_thread"))
        frame = session.createDataFrame([("pushed",)], "identifier string")
        clear_active_session(session)
        write = frame.write.format("in_thread").mode("append").options(mode="push", topic="one")
        with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
            write.save()
        sessions_of(session).setActiveSession(session._jsparkSession)
        write.save()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(push_in_thread).result()
    assert queue.ready("one") == 1
    queue.push("work", ["a", "b"])
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "batch.txt").write_text("row")
    done: list[int] = []

    def handle(batch: DataFrame, _: int) -> None:
        done.append(drain(spark, "work", "me", by_task(lambda _: None), dsn=dsn).done)
        done.append(batch.count())

    writer = spark.readStream.text(str(tmp_path / "in")).writeStream.foreachBatch(handle)
    query = writer.option("checkpointLocation", str(tmp_path / "point")).trigger(availableNow=True).start()
    query.awaitTermination()
    assert done == [2, 1]


def test_decisions_that_overtake_an_earlier_task_are_given_back(drained: Drained, queue: TaskQueue) -> None:
    queue.create_topic("next")
    push(queue, " ".join(f"{name}{number}" for number in range(5) for name in "abc"))

    def fail_two(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ends = {'"a2"': "FAILURE", '"b1"': "SUSPENSION"}
        for batch in batches:
            results = [ends.get(payload, "SUCCESS") for payload in batch["payload"].to_pylist()]
            push_text = '[{"topic": "next", "identifier": "n"}]'
            rows = {"sequence": batch["sequence"], "result": results, "push": [push_text] * batch.num_rows}
            yield pa.RecordBatch.from_pydict(rows)

    result = drained(in_arrow(fail_two), condition=UNTIL_SUCCESS, rounds=None)
    assert result.completed == {Result.FAILURE: 1, Result.SUSPENSION: 1, Result.SUCCESS: 8}
    assert (result.done, result.undecided, result.returned, result.pushed) == (10, 0, 5, 8)
    assert result.stop_reason is StopReason.EMPTY
    assert states(queue, "next") == {"READY": 8}


def test_a_drain_of_rounds_waits_for_tasks_that_a_concurrent_poll_examines_and_leaves(
    drained: Drained, dsn: str, queue: TaskQueue, monkeypatch: pytest.MonkeyPatch
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
        result = drained(succeed, condition=SINGULAR, size=1, rounds=None)
    assert claimed == [0, 0, 0, 1, 1, 0]
    assert (result.claimed, result.done, result.rounds, result.stop_reason) == (2, 2, 2, StopReason.EMPTY)


def test_a_wait_for_a_concurrent_poll_ends_at_the_deadline_and_a_single_round_does_not_wait(
    drained: Drained, dsn: str, queue: TaskQueue
) -> None:
    push(queue, "a1 a2")
    with connect(dsn) as other:
        hold_turns(other)  # as a poll does that began earlier
        soon = timedelta(seconds=2)
        waited = drained(succeed, condition=SINGULAR, rounds=None, deadline=soon)
        assert (waited.done, waited.stop_reason) == (0, StopReason.DEADLINE)
        assert drained(succeed, condition=SINGULAR).stop_reason is StopReason.EMPTY
    assert queue.owners() == []
