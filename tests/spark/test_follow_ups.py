"""Follow-ups are pushed and released once, with the decisions of continued tasks."""

import json
import traceback
from typing import Any
from uuid import uuid4

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.functions import expr
from pyspark.sql.types import ArrayType, DataType, IntegerType, StructType

from airflow_provider_taskq.queue import (
    Decision,
    InvalidTask,
    NewTask,
    Owner,
    Result,
    State,
    Task,
    TaskQueue,
    TaskQueueError,
    UnknownTopic,
    connect,
)
from airflow_provider_taskq.queue.errors import translate_errors
from airflow_provider_taskq.queue.jobs import JobQueue
from airflow_provider_taskq.spark import JunctionGroups, TaskOutcome, by_task
from airflow_provider_taskq.spark.encoding import Attempt, Copy
from airflow_provider_taskq.spark.follow_ups import decision_copies
from airflow_provider_taskq.spark.options import HeldOptions
from airflow_provider_taskq.spark.staging import copy_rows
from airflow_provider_taskq.spark.writers import decisions
from airflow_provider_taskq.worker import Batch, Composite
from tests.roles import logged_in
from tests.spark.conftest import NUMBER, Connection, Drained, Push, names, open_stage, staged

pytestmark = pytest.mark.promise("The decisions and follow-ups of a round are committed together, or not at all")


@pytest.fixture
def sequences(queue: TaskQueue, owner: Owner) -> list[int]:
    """Three tasks that the owner holds, and a topic `next`."""
    queue.create_topic("next")
    pushed = [task.sequence for task in queue.push("work", ["a", "b", "c"])]
    assert queue.claim("work", owner, 3) == 3
    return pushed


def put(conn: Connection, stage: str, attempt: int, rows: list[tuple[int, int, bool | None]]) -> None:
    """Stages decisions of part 0 (sequence, result, continued), each with a follow-up named after try and task."""
    for place, (sequence, result, continued) in enumerate(rows):
        conn.execute(
            "INSERT INTO taskq.staged (stage, part, attempt, sequence, result, continued)"
            " VALUES (%s, 0, %s, %s, %s, %s)",
            (stage, attempt, sequence, result, continued),
        )
        conn.execute(
            "INSERT INTO taskq.staged_task (stage, part, attempt, place, parent, topic, identifier)"
            " VALUES (%s, 0, %s, %s, %s, 'next', %s)",
            (stage, attempt, place, sequence, f"{attempt}-{sequence}"),
        )


def copies(stage: str, attempt: int, decision: dict[str, Any]) -> list[Copy]:
    """Encodes a decision with its follow-ups, as an attempt of part 0 does."""
    return decision_copies(pa.RecordBatch.from_pylist([decision]), Attempt(stage, 0, attempt))


def complete_stage(conn: Connection, owner: Owner, stage: str, attempt: int, count: int) -> None:
    with translate_errors():
        conn.execute(
            "SELECT taskq.commit_stage(%s, '{0}', %s::bigint[], %s::bigint[], %s, %s)",
            (stage, [attempt], [count], owner.name, owner.fence),
        )


def test_only_follow_ups_of_continued_tasks_of_the_successful_attempt_are_pushed_once(
    conn: Connection, queue: TaskQueue, owner: Owner, sequences: list[int]
) -> None:
    a, b, c = sequences
    stage = open_stage(conn, owner)
    put(conn, stage, 1, [(a, 3, None), (b, 3, None), (c, 3, None)])
    put(conn, stage, 2, [(a, 3, None), (b, 2, None), (c, 2, True)])
    for _ in range(2):  # the second time, as a driver whose first answer was lost
        complete_stage(conn, owner, stage, 2, 3)
    assert names(queue, "next") == [f"2-{a}", f"2-{c}"]
    assert conn.execute("SELECT pushed FROM taskq.close_stage(%s)", (stage,)).fetchall() == [(2,)]
    assert staged(conn) == 0


def test_follow_ups_staged_during_the_commit_are_refused(
    conn: Connection, dsn: str, owner: Owner, sequences: list[int]
) -> None:
    stage = open_stage(conn, owner)
    put(conn, stage, 1, [(sequences[0], 3, None)])
    pushed = '[{"topic": "next", "identifier": "late"}]'
    with connect(dsn) as late:
        copy_rows(JobQueue(late), copies(stage, 2, {"sequence": sequences[0], "result": "SUCCESS", "push": pushed}))
        complete_stage(conn, owner, stage, 1, 1)
        with pytest.raises(TaskQueueError, match="was committed"), translate_errors():
            late.execute("SELECT taskq.check_stage(%s, %s, %s)", (stage, owner.name, owner.fence))
        late.rollback()
    assert conn.execute("SELECT pushed FROM taskq.close_stage(%s)", (stage,)).fetchall() == [(1,)]


@pytest.mark.promise("Payloads and passwords are in no log, error, metric, argument, XCom or plan")
def test_the_error_of_a_follow_up_that_cannot_be_staged_shows_no_payload(dsn: str, sequences: list[int]) -> None:
    payload = json.dumps({"secret": "markedpayload0815"})
    pushed = json.dumps([{"topic": "next", "identifier": "late", "payload": payload, "priority": 1}])
    encoded = copies(str(uuid4()), 1, {"sequence": sequences[0], "result": "SUCCESS", "push": pushed})
    with connect(dsn) as conn:
        conn.execute("ALTER TABLE taskq.staged_task ADD CHECK (priority > 100)")
        with pytest.raises(TaskQueueError) as error:
            copy_rows(JobQueue(conn), encoded)
        conn.rollback()
    cause = error.value.__cause__
    assert isinstance(cause, psycopg.Error)
    assert "markedpayload0815" in (cause.diag.message_detail or "")
    assert "markedpayload0815" not in "".join(traceback.format_exception(error.value))


NEW = {"topic": "next", "identifier": "b"}


@pytest.mark.parametrize("payload", [{"a": ["b"]}, '{"a": ["b"]}'], ids=["object", "text"])
@pytest.mark.parametrize("dump", [json.dumps, list], ids=["JSON", "array"])
def test_the_payload_of_a_follow_up_is_an_object_or_json_text(
    conn: Connection, queue: TaskQueue, owner: Owner, sequences: list[int], payload: Any, dump: Any
) -> None:
    stage = open_stage(conn, owner)
    pushed = dump([{**NEW, "payload": payload}])
    copy_rows(JobQueue(conn), copies(stage, 1, {"sequence": sequences[0], "result": "SUCCESS", "push": pushed}))
    complete_stage(conn, owner, stage, 1, 1)
    assert [task.payload for task in queue.page("next")] == [{"a": ["b"]}]


@pytest.mark.parametrize(
    ("follow_up", "words"),
    [
        ({"push": [{**NEW, "prio": 1}]}, "unknown field 'prio' of a new task: use available_at, delay"),
        ({"push": "{oops"}, "its push is not JSON"),
        ({"push": '{"topic": "next"}'}, "its push is not a list of structs"),
        ({"push": [{"topic": "next"}]}, "its identifier is not a text"),
        ({"push": [{**NEW, "available_at": "noon"}]}, "its available_at is not a timestamp with a time zone"),
        ({"push": [{**NEW, "available_at": "2026-01-01"}]}, "its available_at is not a timestamp with a time zone"),
        ({"push": [{**NEW, "delay": "soon"}]}, "its delay is not a duration"),
        ({"push": [{**NEW, "ttl": 1e300}]}, "its ttl is not a duration"),
        ({"push": [{**NEW, "depends_on": ["oops"]}]}, "its depends_on is not a list of pairs"),
        ({"junctions": [{"topic": "next", "groups": ["oops"]}]}, "its groups are not a list of lists"),
    ],
)
def test_a_follow_up_that_cannot_be_staged_is_named_by_its_task(follow_up: dict[str, Any], words: str) -> None:
    texts = {name: given if isinstance(given, str) else json.dumps(given) for name, given in follow_up.items()}
    with pytest.raises(InvalidTask, match=f"the follow-up of task 7: {words}") as refused:
        copies(str(uuid4()), 1, {"sequence": 7, "result": "SUCCESS", **texts})
    assert "oops" not in str(refused.value)


@pytest.mark.parametrize(
    ("push", "words"),
    [
        (IntegerType(), "column push of the decisions is array<int>, not an array of structs"),
        (StructType().add("topic", "string").add("prio", "integer"), "unknown column 'prio' in the new tasks"),
        (
            StructType().add("topic", "string").add("identifier", "integer"),
            "column identifier of the new tasks is int, not string",
        ),
    ],
)
def test_the_structs_of_new_tasks_are_checked_before_the_job(push: DataType, words: str) -> None:
    rows = decisions(HeldOptions.parse({"mode": "complete", "owner": "me", "fence": "1"}, "complete"))
    schema = StructType().add("sequence", "long").add("result", "string")
    with pytest.raises(InvalidTask, match=words):
        rows.check_columns(schema.add("push", ArrayType(push)))


def test_follow_ups_of_a_task_decided_twice_need_both_decisions_continued(
    conn: Connection, queue: TaskQueue, owner: Owner, sequences: list[int]
) -> None:
    a, b, c = sequences
    stage = open_stage(conn, owner)
    twice = [(a, 3, None), (a, 0, None), (b, 3, None), (b, 3, False), (c, 3, None), (c, 2, True)]
    put(conn, stage, 1, twice)
    complete_stage(conn, owner, stage, 1, 6)
    assert names(queue, "next") == [f"1-{c}"] * 2


@pytest.mark.parametrize(
    ("column", "value", "error", "words"),
    [
        ("identifier", " ", InvalidTask, "its identifier is blank"),
        ("topic", "nowhere", UnknownTopic, "nowhere"),
    ],
)
def test_a_follow_up_that_breaks_a_rule_refuses_all(
    conn: Connection,
    queue: TaskQueue,
    owner: Owner,
    sequences: list[int],
    column: str,
    value: str,
    error: type[Exception],
    words: str,
) -> None:
    stage = open_stage(conn, owner)
    put(conn, stage, 1, [(sequences[0], 3, None)])
    conn.execute(f"UPDATE taskq.staged_task SET {column} = %s".encode(), (value,))
    with pytest.raises(error, match=words):
        complete_stage(conn, owner, stage, 1, 1)
    assert {task.sequence for task in queue.held(owner)} == set(sequences)
    assert names(queue, "next") == []


def test_functions_of_one_task_push_and_release(drained: Drained, dsn: str, queue: TaskQueue, push: Push) -> None:
    queue.create_topic("next")
    queue.push("next", [NewTask(f"wait-{number}", suspended=True) for number in range(3)])
    push(6)

    def decide(task: Task) -> TaskOutcome:
        assert isinstance(task.payload, dict)
        number = task.payload["number"]
        assert isinstance(number, int)
        new_tasks = {"next": [NewTask(f"{number}-{nth}", {"of": number}, priority=nth) for nth in range(2)]}
        groups = [JunctionGroups("next", [["wait-0", "wait-1"], ["wait-2", "never"]])]
        if number < 4:
            return TaskOutcome(Result(number), push=new_tasks, junctions=groups)
        return TaskOutcome(Decision(Result.FILTER, continued=number == 4), push=new_tasks)

    with connect(dsn, autocommit=True) as waiting:
        waiting.execute("LISTEN taskq")
        result = drained(by_task(decide))
        assert [notification.payload for notification in waiting.notifies(timeout=10, stop_after=1)] == ["next"]
    assert (result.done, result.pushed) == (6, 4)
    following = queue.latest("next", ["3-0", "3-1", "4-0", "4-1", "wait-0", "wait-1", "wait-2"])
    assert {name: (task.state, task.priority) for name, task in following.items()} == {
        **{f"{number}-{nth}": (State.READY, nth) for number in (3, 4) for nth in range(2)},
        "wait-0": (State.READY, 0),
        "wait-1": (State.READY, 0),
        "wait-2": (State.SUSPENDED, 0),
    }
    assert following["4-1"].payload == {"of": 4}


@pytest.mark.promise("A role may call the functions of its kind, and no others")
def test_a_drain_is_a_consumer_and_with_follow_ups_a_producer(
    drained: Drained, conn: Connection, dsn: str, queue: TaskQueue, push: Push
) -> None:
    queue.create_topic("next")
    queue.push("next", [NewTask("suspended", suspended=True)])

    def release(_: Task) -> TaskOutcome:
        return TaskOutcome(Decision(Result.FILTER, continued=True), junctions=[JunctionGroups("next", [["suspended"]])])

    def push_next(task: Task, batch: Batch) -> None:
        batch.push(task, "next", ["plain"])

    push(2)
    with logged_in(conn, dsn, "consumer") as consumer:
        assert drained(by_task(release), dsn=consumer).completed == {Result.FILTER: 2}
    assert [(task.identifier, task.state) for task in queue.page("next")] == [("suspended", State.READY)]
    push(1)
    with logged_in(conn, dsn, "consumer", "producer") as both:
        following = Composite("following").with_step(push_next)
        assert drained(following, dsn=both, rounds=None).completed == {Result.SUCCESS: 1}
    assert names(queue, "next") == ["suspended", "plain"]


def test_dataframes_push_and_release_for_the_tasks_that_they_continue(
    drained: Drained, queue: TaskQueue, push: Push
) -> None:
    queue.create_topic("next")
    queue.push("next", [NewTask(f"wait-{number}", suspended=True) for number in range(6)])
    push(6)

    def decide(tasks: DataFrame) -> DataFrame:
        return tasks.withColumn("number", expr(NUMBER)).selectExpr(
            "sequence",
            "element_at(array('SUCCESS', 'SUCCESS', 'FILTER', 'FILTER', 'FAILURE', 'FAILURE'), number + 1) AS result",
            "element_at(array(null, false, null, true, null, true), number + 1) AS continued",
            "array(named_struct('topic', 'next', 'identifier', identifier, 'payload', struct(number, map(date(created),"
            " identifier) AS seen), 'available_at', created, 'delay', cast(null AS int))) AS push",
            "array(named_struct('topic', 'next', 'groups', array(array(concat('wait-', number))))) AS junctions",
        )

    result = drained(decide)
    assert result.completed == {Result.FAILURE: 2, Result.FILTER: 2, Result.SUCCESS: 2}
    assert (result.done, result.pushed) == (6, 3)
    going_on = {"item-0", "item-3", "item-5"}
    following = {task.identifier: task.state for task in queue.page("next", size=100)}
    assert following == {
        **dict.fromkeys(going_on, State.READY),
        **{f"wait-{n}": State.READY if f"item-{n}" in going_on else State.SUSPENDED for n in range(6)},
    }
    task = queue.latest("next", ["item-3"])["item-3"]
    assert task.payload == {"number": 3, "seen": {str(task.created.date()): "item-3"}}
