"""Transforms: a DataFrame, batches, or one task after another, all to the same decisions."""

import json
import struct
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pytest

from airflow_provider_taskq.queue import Decision, InvalidTask, NewTask, Result, State, Task, TaskQueue
from airflow_provider_taskq.spark import JunctionGroups, TaskOutcome, by_task
from airflow_provider_taskq.spark.encoding import Attempt, check_decision_columns, encode_decisions
from airflow_provider_taskq.spark.transforms import Transform, decision_row, decisions_batch
from airflow_provider_taskq.worker import Composite
from tests.faults.poison import POISON, poison
from tests.spark.conftest import Drained

pytestmark = pytest.mark.promise("A transform may be a DataFrame, batches or a function of one task")

if TYPE_CHECKING:
    pass


def row(outcome: object) -> dict[str, Any]:
    made = decision_row(lambda _: outcome, Task(7, "work", "a", None, None, 1, False))  # type: ignore[arg-type, return-value]
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Result.SUCCESS, {"result": "SUCCESS"}),
        (Decision(Result.FILTER, message={"why": "ä"}), {"result": "FILTER", "message": '{"why":"ä"}'}),
        (Decision(Result.FAILURE, error="bad\x00"), {"result": "FAILURE", "error": "bad\\0"}),
        (Decision(Result.SUSPENSION, delay=timedelta(seconds=1.5)), {"result": "SUSPENSION", "delay": 1.5}),
        (Decision(Result.FILTER, continued=True), {"result": "FILTER", "continued": True}),
        (TaskOutcome(Result.SUCCESS), {"result": "SUCCESS"}),
        (TaskOutcome(Result.FAILURE, push={"next": ["b"]}), {"result": "FAILURE"}),
    ],
)
def test_the_return_value_of_a_function_becomes_a_decision(outcome: object, expected: dict[str, object]) -> None:
    assert {name: value for name, value in row(outcome).items() if value is not None} == {"sequence": 7, **expected}


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ("DONE", "a handler returned 'DONE': expected a Decision"),
        (Decision(Result.SUCCESS, message=float("nan")), "holds NaN or an infinity"),
        (TaskOutcome(push={"next": [""]}), None),
        (TaskOutcome(push={"next": [NewTask("b", {1: object()})]}), "its payload is not JSON"),  # type: ignore[dict-item]
        (TaskOutcome(push={"next": [NewTask("b", priority=101)]}), "its priority 101 is outside"),
        (TaskOutcome(push={"next": [NewTask("b", available_at=datetime(2026, 1, 1))]}), "has no time zone"),  # noqa: DTZ001
        (TaskOutcome(junctions=[JunctionGroups("work", ["ab"])]), "a group must be a list of identifiers"),
    ],
)
def test_a_return_value_that_is_not_a_decision_fails_its_task_only(outcome: object, words: str | None) -> None:
    made = row(outcome)
    if words is None:  # a rule that the server holds
        assert json.loads(made["push"])[0]["identifier"] == ""
    else:
        assert made["result"] == "FAILURE"
        assert words in made["error"]


def test_decisions_are_converted_to_one_schema() -> None:
    push = [{"at": datetime(2026, 1, 1, tzinfo=UTC)}]
    given = {"Delay": timedelta(seconds=2), "SEQUENCE": 1, "result": 1, "push": push}
    assert decisions_batch(pa.RecordBatch.from_pylist([given])).to_pylist() == [
        {
            **dict.fromkeys(("message", "error", "continued", "junctions")),
            "sequence": 1,
            "result": "SUSPENSION",
            "delay": 2.0,
            "push": '[{"at":"2026-01-01T00:00:00.000Z"}]',
        }
    ]


def test_a_batch_with_a_column_of_another_type_is_refused() -> None:
    with pytest.raises(InvalidTask, match="column sequence of the decisions is string, not int64"):
        decisions_batch(pa.RecordBatch.from_pydict({"sequence": ["one"], "result": ["SUCCESS"]}))


def use_payload(task: Task) -> Result:
    """Uses the payload as data."""
    assert isinstance(task.payload, dict)
    assert task.payload["number"] is not None
    return Result.SUCCESS


@pytest.mark.promise("A payload that no client can decode fails its own task and stops nothing else")
@pytest.mark.parametrize(
    "transform", [by_task(use_payload), Composite("steps").with_step(use_payload)], ids=["by task", "composite"]
)
def test_a_drain_fails_unreadable_tasks_and_completes_the_others(
    drained: Drained, queue: TaskQueue, transform: Transform | Composite
) -> None:
    tasks = queue.push("work", [NewTask(f"id-{n}", {"number": n}) for n in range(10)])
    bad = tasks[2:8:2]
    for task, text in zip(bad, POISON.values(), strict=True):
        poison(queue.conn, task, text)
    result = drained(transform)
    assert (result.claimed, result.done) == (10, 10)
    failed = queue.page("work", state=State.FAILED)
    assert failed == bad
    assert all("InvalidTask: unreadable JSON: " in str(info.error) for info in failed)
    assert len(queue.page("work", state=State.SUCCEEDED)) == 7


# Decisions are checked before they are staged

STAGE = bytes(range(16))


def rows(**columns: Any) -> list[list[bytes | None]]:
    """The fields of each row as they are sent."""
    given = {"sequence": pa.array([7], pa.int64()), "result": pa.array(["SUCCESS"]), **columns}
    copy = encode_decisions(pa.record_batch(given), Attempt(str(UUID(bytes=STAGE)), 3, 5))
    copy.refuse_json()  # what a COPY refuses
    data, place, found = copy.rows.to_pybytes(), 0, []
    while place < len(data):
        (fields,), place = struct.unpack_from(">h", data, place), place + 2
        row: list[bytes | None] = []
        for _ in range(fields):
            (size,), place = struct.unpack_from(">i", data, place), place + 4
            row.append(None if size < 0 else data[place : place + size])
            place += max(size, 0)
        found.append(row)
    return found


def test_a_decision_becomes_a_row() -> None:
    columns = {"message": pa.array(['{"a":"x,\\"y"}']), "error": pa.array(["no\nluck"])}
    numbers = [STAGE, struct.pack(">i", 3), struct.pack(">q", 5), struct.pack(">q", 7), struct.pack(">h", 3)]
    assert rows(**columns) == [[*numbers, b'{"a":"x,\\"y"}', b"no\nluck", None, None]]


@pytest.mark.parametrize(("name", "number"), [("FAILURE", 0), ("SUSPENSION", 1), ("FILTER", 2), ("SUCCESS", 3)])
def test_a_result_is_a_name_or_a_number(name: str, number: int) -> None:
    assert rows(result=pa.array([name]))[0][4] == rows(result=pa.array([number]))[0][4] == struct.pack(">h", number)


NO_RESULT = "unknown result {}.* of the decision on task 7: use FAILURE, SUSPENSION, FILTER, SUCCESS"
SUSPENSION = pa.array(["SUSPENSION"])
TOO_LONG = "the decision on task 7: its delay is not a number, or longer"


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"result": pa.array(["DONE"])}, NO_RESULT.format("'DONE'")),
        ({"result": pa.array(["success"])}, NO_RESULT.format("'success'")),
        ({"result": pa.array([4])}, NO_RESULT.format("4")),
        ({"result": pa.array([-1])}, NO_RESULT.format("-1")),
        ({"result": pa.array([None], pa.string())}, NO_RESULT.format("null")),
        ({"result": pa.array(["x" * 99])}, NO_RESULT.format("'xxxxx")),
        ({"sequence": pa.array([None], pa.int64())}, "a decision has no sequence"),
        ({"message": pa.array(["{oops"])}, "the message of the decision on task 7 is not JSON"),
        ({"message": pa.array([""])}, "task 7 is not JSON"),
        ({"message": pa.array(['{"a":NaN}'])}, "NaN is not a JSON number"),
        ({"message": pa.array(["[" * 100_000])}, "task 7 is not JSON"),
        ({"error": pa.array(["a\x00b"])}, "the decision on task 7: its error holds a NUL"),
        ({"delay": pa.array([1])}, "task 7: only a SUSPENSION takes a delay"),
        ({"result": SUSPENSION, "delay": pa.array([float("nan")])}, TOO_LONG),
        ({"result": SUSPENSION, "delay": pa.array([float("inf")])}, TOO_LONG),
        ({"result": SUSPENSION, "delay": pa.array([1e300])}, TOO_LONG),
    ],
)
def test_an_invalid_decision_is_named_and_not_quoted(columns: dict[str, pa.Array], sentence: str) -> None:
    with pytest.raises(InvalidTask, match=sentence) as refused:
        rows(**columns)
    assert "oops" not in str(refused.value)


@pytest.mark.parametrize("message", ["null", "0", '"\\\\u0000"', '"\\u00e4\\ud83d\\ude00"', '{"a":[1,{}]}', None])
def test_a_valid_message_is_not_changed(message: str | None) -> None:
    assert rows(message=pa.array([message], pa.string()))[0][5] == (None if message is None else message.encode())


def test_an_error_keeps_its_end() -> None:
    assert rows(error=pa.array(["x" * 20_000 + "cause"]))[0][6] == b"x" * 9_995 + b"cause"


@pytest.mark.parametrize("delay", [90, 90.0, timedelta(seconds=90)])
def test_a_delay_is_an_interval_or_seconds(delay: object) -> None:
    assert rows(result=SUSPENSION, delay=pa.array([delay]))[0][7] == struct.pack(">qii", 90_000_000, 0, 0)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"sequence": "bigint"}, "decisions need a column result: these have sequence"),
        ({}, "decisions need a column sequence: these have none"),
        ({"sequence": "bigint", "result": "string", "note": "string"}, "unknown column 'note' in the decisions"),
        ({"sequence": "string", "result": "string"}, "column sequence of the decisions is string, not bigint or int"),
        (
            {"sequence": "bigint", "result": "string", "message": "struct<a:int>"},
            "column message of the decisions is struct<a:int>",
        ),
    ],
)
def test_columns_are_checked_by_name_and_type(columns: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidTask, match=sentence):
        check_decision_columns(columns)
