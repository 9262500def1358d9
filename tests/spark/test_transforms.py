"""Transforms: a DataFrame, batches, or one task after another, all to the same decisions."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_provider_taskq.queue import Condition, Decision, InvalidTask, NewTask, Result, State, Task, TaskQueue
from airflow_provider_taskq.spark import JunctionGroups, TaskOutcome, by_task, in_arrow, in_pandas
from airflow_provider_taskq.spark.composite import Transform
from airflow_provider_taskq.spark.transforms import blocks_identifier, decision_row, decisions_batch
from airflow_provider_taskq.worker import Composite
from tests.faults.poison import POISON, poison
from tests.spark.conftest import Drained, Push

pytestmark = pytest.mark.promise("A transform may be a DataFrame, batches or a function of one task")

if TYPE_CHECKING:
    import pandas as pd


def values(payload: str | None = "null") -> dict[str, Any]:
    named = {"topic": "work", "identifier": "a", "reference": None, "attempt": 1, "redelivered": False}
    return {"sequence": 7, "payload": payload, **named}


def row(outcome: object) -> dict[str, Any]:
    made = decision_row(lambda _: outcome, values())  # type: ignore[arg-type, return-value]
    assert made is not None
    return made


def test_a_function_gets_the_task_with_its_payload_decoded() -> None:
    seen: list[Task] = []
    assert decision_row(seen.append, values('{"n": [1, null]}')) is None
    assert seen[0].payload == {"n": [1, None]}
    assert (seen[0].sequence, seen[0].identifier, seen[0].attempt) == (7, "a", 1)


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


def test_a_function_that_fails_fails_its_task_with_the_end_of_its_trace() -> None:
    def broken(_: Task) -> Result:
        raise RuntimeError("x" * 20_000 + "the end")

    made = decision_row(broken, values())
    assert made is not None
    assert made["result"] == "FAILURE"
    assert made["error"].endswith("the end\n")
    assert len(made["error"]) == 10_000


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ("SUCCESS", "returned a str, not a Decision, Result, TaskOutcome or None"),
        (Decision(Result.SUCCESS, message=float("nan")), "is not JSON"),
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
    given = {"delay": timedelta(seconds=2), "sequence": 1, "result": 1, "push": push}
    assert decisions_batch(pa.RecordBatch.from_pylist([given])).to_pylist() == [
        {
            **dict.fromkeys(("message", "error", "continued", "junctions")),
            "sequence": 1,
            "result": "SUSPENSION",
            "delay": 2.0,
            "push": '[{"at": "2026-01-01T00:00:00+00:00"}]',
        }
    ]


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"sequence": [1]}, "need a column result"),
        ({"sequence": [1], "result": ["SUCCESS"], "mesage": ["1"]}, "unknown column 'mesage'"),
        ({"sequence": ["one"], "result": ["SUCCESS"]}, "column sequence of the decisions is string, not int64"),
    ],
)
def test_batches_that_are_not_decisions_are_refused(batch: dict[str, list[Any]], words: str) -> None:
    with pytest.raises(InvalidTask, match=words):
        decisions_batch(pa.RecordBatch.from_pydict(batch))


def test_by_task_decides_one_task_after_another(drained: Drained, queue: TaskQueue, push: Push) -> None:
    push(20)

    def work(task: Task) -> Decision | Result | None:
        assert isinstance(task.payload, dict)
        number = task.payload["number"]
        assert isinstance(number, int)
        if number % 4 == 0:
            raise ValueError(f"no luck with {number}")
        if number % 4 == 1:
            return None
        return Result.FILTER if number % 4 == 2 else Decision(Result.SUCCESS, {"seen": number})

    result = drained(by_task(work))
    assert result.completed == {Result.FAILURE: 5, Result.FILTER: 5, Result.SUCCESS: 5}
    assert (result.done, result.undecided) == (15, 5)
    failed, succeeded = (queue.latest("work", [name])[name] for name in ("item-8", "item-7"))
    assert failed.error is not None
    assert failed.error.startswith("Traceback")
    assert failed.error.endswith("ValueError: no luck with 8\n")
    assert succeeded.output == {"seen": 7}


def test_batches_of_arrow_and_of_pandas_become_decisions(drained: Drained, queue: TaskQueue, push: Push) -> None:
    push(20)

    def arrow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"sequence": batch["sequence"], "result": pa.repeat(3, batch.num_rows)})

    def pandas(frames: Iterator["pd.DataFrame"]) -> Iterator["pd.DataFrame"]:
        for frame in frames:
            yield frame[["sequence"]].assign(result="FILTER", message=frame["payload"])

    assert drained(in_arrow(arrow), size=10).completed == {Result.SUCCESS: 10}
    assert drained(in_pandas(pandas)).completed == {Result.FILTER: 10}
    assert queue.latest("work", ["item-15"])["item-15"].output == {"number": 15}


PLAIN, UNTIL_SUCCESS = Condition.SINGULAR_BY_IDENTIFIER, Condition.SINGULAR_BY_IDENTIFIER_SUSPEND_UNTIL_SUCCESS


@pytest.mark.parametrize(
    ("decision", "condition", "blocks"),
    [
        (None, PLAIN, True),
        ({"result": "FAILURE"}, PLAIN, True),
        ({"result": "SUSPENSION", "delay": 1.0}, PLAIN, True),
        ({"result": "SUSPENSION", "delay": None}, PLAIN, False),
        ({"result": "SUSPENSION", "delay": None}, UNTIL_SUCCESS, True),
        ({"result": "FILTER"}, PLAIN, False),
        ({"result": "SUCCESS"}, PLAIN, False),
    ],
)
def test_under_a_condition_a_task_that_does_not_end_well_blocks_the_later_ones(
    decision: dict[str, Any] | None, condition: Condition, blocks: bool
) -> None:
    assert blocks_identifier(decision, condition) is blocks


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
