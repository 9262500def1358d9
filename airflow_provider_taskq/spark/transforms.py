"""Transforms: what a drain does with its tasks, as one DataFrame, batch by batch, or one by one.

Each is a function from a DataFrame of tasks to a DataFrame of decisions, so that all can be used wherever one is
asked for:

    drain(spark, "work", "me", lambda tasks: tasks.selectExpr("sequence", "'SUCCESS' AS result"))
    drain(spark, "work", "me", in_arrow(function))   # Iterator[RecordBatch] -> Iterator[RecordBatch], a partition
    drain(spark, "work", "me", in_pandas(function))  # the same with DataFrames of pandas
    drain(spark, "work", "me", by_task(function))    # Task -> Decision, Result, Decided or None, one after another
    drain(spark, "work", "me", composite)            # batches through the steps of a composite: see by_composite.py
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame

from airflow_provider_taskq.queue import (
    Condition,
    Decision,
    InvalidTask,
    Junction,
    Result,
    Task,
    UnreadablePayload,
)
from airflow_provider_taskq.queue.encoding import decode_json, json_text
from airflow_provider_taskq.queue.errors import trace_text
from airflow_provider_taskq.queue.task_input import TaskInput
from airflow_provider_taskq.spark.batches import ARROW, DECISIONS, decisions_batch
from airflow_provider_taskq.spark.follow_ups import follow_up

if TYPE_CHECKING:
    import pandas as pd

OF_A_TASK = ("sequence", "topic", "identifier", "payload", "reference", "attempt", "redelivered")


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of identifiers of a topic, to be released as `TaskQueue.junction` does."""

    topic: str
    groups: Sequence[Sequence[str]]
    junction: Junction = Junction.SINGULAR


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision, and what follows it: new tasks by topic, and groups to release.

    They are carried out in the transaction of the decision, once, and only where the task is continued (see
    `Decision`).
    """

    decision: Decision | Result = Result.SUCCESS
    push: Mapping[str, Iterable[TaskInput]] = field(default_factory=dict)
    junctions: Sequence[Groups] = ()


Outcome = Decision | Result | Decided | None
TaskFunction = Callable[[Task], Outcome]
ArrowFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
PandasFunction = Callable[[Iterator["pd.DataFrame"]], Iterator["pd.DataFrame"]]


def in_arrow(function: ArrowFunction) -> "ByBatch":
    """A transform from a function of Arrow batches: the tasks of a partition in, their decisions out, in any number.

    Columns of decisions are `sequence`, `result`, and where wanted `message`, `error`, `delay`, `continued`, `push`,
    `junctions`.
    """
    return ByBatch(function)


def in_pandas(function: PandasFunction) -> "ByBatch":
    """The same from a function of pandas DataFrames."""

    def converted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for frame in function(batch.to_pandas() for batch in batches):
            yield pa.RecordBatch.from_pandas(frame, preserve_index=False)

    return ByBatch(converted)


def by_task(function: TaskFunction) -> "ByTask":
    """A transform from a function of one task, which is called on executors, for each task of a partition in turn.

    It returns a Result, a Decision, one with follow-ups (Decided), or None for no decision: the task is given back
    then. An exception, or something that is none of these, is a FAILURE of that task, with the trace as its error.
    """
    return ByTask(function)


@dataclass(frozen=True, slots=True)
class ByBatch:
    """A transform that works the batches of a partition."""

    function: ArrowFunction

    def __call__(self, tasks: DataFrame) -> DataFrame:
        """The decisions on these tasks."""
        function = self.function

        def decided(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from map(decisions_batch, function(batches))

        return tasks.mapInArrow(decided, DECISIONS)


@dataclass(frozen=True, slots=True)
class ByTask:
    """A transform that works one task after another.

    Under a condition the tasks come with those of one identifier one after another, and once one of these does not
    end well the rest of them are passed over, without a decision.
    """

    function: TaskFunction
    condition: Condition = Condition.NONE

    def under(self, condition: Condition) -> "ByTask":
        """The same, for tasks that come in turn under a condition."""
        return replace(self, condition=condition)

    def __call__(self, tasks: DataFrame) -> DataFrame:
        """The decisions on these tasks."""
        function, condition = self.function, self.condition

        def decided(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            lane, stopped = None, False
            for batch in batches:
                rows = []
                for values in batch.to_pylist():
                    if condition is not Condition.NONE and values["identifier"] != lane:
                        lane, stopped = values["identifier"], False
                    if stopped:
                        continue
                    row = decision_row(function, values)
                    stopped = condition is not Condition.NONE and stops(row, condition)
                    rows += [row] if row else []
                yield pa.RecordBatch.from_pylist(rows, schema=ARROW)

        return tasks.select(*OF_A_TASK).mapInArrow(decided, DECISIONS)


def decision_row(function: TaskFunction, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the function decides on one task, as a row; None for no decision."""
    sequence = values["sequence"]
    try:
        outcome = function(readable_task(values))
        return None if outcome is None else _row(sequence, outcome)
    except Exception as error:  # noqa: BLE001 -- whatever it is, it is this task's failure and no other's
        return {"sequence": sequence, "result": "FAILURE", "error": trace_text(error)}


def readable_task(values: Mapping[str, Any]) -> Task:
    """The task of a row of OF_A_TASK; InvalidTask if its payload cannot be decoded."""
    task = task_of(values)
    if isinstance(task.payload, UnreadablePayload):
        raise InvalidTask(task.payload.reason)
    return task


def task_of(values: Mapping[str, Any]) -> Task:
    """The task of a row of OF_A_TASK; a payload that cannot be decoded is an UnreadablePayload."""
    text = values["payload"]
    return Task(**{**values, "payload": None if text is None else decode_json(text)})


def _row(sequence: int, outcome: Outcome) -> dict[str, Any]:
    """A decision as a row of DECISIONS; ValueError or InvalidTask for what is none."""
    decided = outcome if isinstance(outcome, Decided) else Decided(_checked(outcome))
    made = _checked(decided.decision)
    decision = made if isinstance(made, Decision) else Decision(made)
    tasks = [follow_up(topic, task) for topic, given in decided.push.items() for task in given]
    groups = [
        {"topic": each.topic, "groups": _listed(each.groups), "junction": each.junction} for each in decided.junctions
    ]
    return values_of(sequence, decision, tasks, groups)


def values_of(
    sequence: int, decision: Decision, tasks: Sequence[Mapping[str, Any]], groups: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """A decision as a row of DECISIONS, with the tasks and groups that follow it where it is continued."""
    return {
        "sequence": sequence,
        "result": Result(decision.result).name,
        "message": json_text(decision.message),
        "error": trace_text(decision.error),
        "delay": None if decision.delay is None else decision.delay.total_seconds(),
        "continued": None if decision.continued == (decision.result == Result.SUCCESS) else decision.continued,
        "push": json.dumps(tasks) if tasks and decision.continued else None,
        "junctions": json.dumps(groups) if groups and decision.continued else None,
    }


def _checked(outcome: object) -> Decision | Result:
    """What is a decision, or a result by name or number."""
    if not isinstance(outcome, Decision | Result):
        raise InvalidTask(f"the function returned a {type(outcome).__name__}, not a Decision, Result, Decided or None")
    return outcome


def _listed(groups: Sequence[Sequence[str]]) -> list[list[str]]:
    """Groups as lists; a text would be taken for a group of its letters."""
    if any(isinstance(group, str) for group in groups):
        raise InvalidTask("a group is a list of identifiers, not a text")
    return [list(group) for group in groups]


def stops(row: Mapping[str, Any] | None, condition: Condition) -> bool:
    """Whether later tasks of the turn have to wait: the same rule as taskq_internal.drop_overtaking_decisions."""
    if row is None or row["result"] == "FAILURE":
        return True
    until_success = condition is Condition.SINGULAR_BY_IDENTIFIER_SUSPEND_UNTIL_SUCCESS
    return row["result"] == "SUSPENSION" and (row.get("delay") is not None or until_success)
