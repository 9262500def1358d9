"""Transforms: functions that turn the tasks of a drain into decisions, as one DataFrame, in batches, or one by one.

Each transform is a function from a DataFrame of tasks to a DataFrame of decisions. So transforms can be combined:

    drain(spark, "work", "me", lambda tasks: tasks.selectExpr("sequence", "'SUCCESS' AS result"))
    drain(spark, "work", "me", in_arrow(function))   # Iterator[RecordBatch] -> Iterator[RecordBatch], per partition
    drain(spark, "work", "me", in_pandas(function))  # the same with DataFrames of pandas
    drain(spark, "work", "me", by_task(function))    # Task -> what a handler returns, or a TaskOutcome
    drain(spark, "work", "me", composite)            # batches through the steps of a composite: see composite.py
"""

import asyncio
import inspect
import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
from pyspark.sql import DataFrame

from airflow_provider_taskq.queue import (
    Condition,
    InvalidTask,
    Junction,
    Result,
    Task,
    TaskQueueError,
    UnreadablePayload,
)
from airflow_provider_taskq.queue.encoding import decode_json, json_text
from airflow_provider_taskq.queue.errors import trace_text
from airflow_provider_taskq.queue.task_input import TaskInput
from airflow_provider_taskq.spark.columns import json_of, plain_batch
from airflow_provider_taskq.spark.encoding import RESULT_NAMES, check_decision_columns
from airflow_provider_taskq.spark.follow_ups import follow_up
from airflow_provider_taskq.spark.readers import arrow_schema, spark_schema
from airflow_provider_taskq.worker.batches import BatchContext
from airflow_provider_taskq.worker.handlers import (
    HandlerFunction,
    HandlerOutcome,
    decision_of,
    decision_on,
    is_undecided,
)

if TYPE_CHECKING:
    import pandas as pd

TASK_COLUMNS = ("sequence", "topic", "identifier", "payload", "reference", "attempt", "redelivered")
DECISION_SCHEMA = (
    "sequence long, result string, message string, error string, delay double, continued boolean,"
    " push string, junctions string"
)
DECISION_ARROW_SCHEMA = arrow_schema(spark_schema(DECISION_SCHEMA))


@dataclass(frozen=True, slots=True)
class JunctionGroups:
    """Groups of identifiers of a topic, which are released as by `TaskQueue.junction`."""

    topic: str
    groups: Sequence[Sequence[str]]
    junction: Junction = Junction.SINGULAR


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """A decision with its follow-ups: new tasks by topic, and groups to release.

    If the decision is continued (see `Decision.continued`), its transaction pushes and releases the follow-ups once.
    """

    decision: HandlerOutcome = Result.SUCCESS
    push: Mapping[str, Iterable[TaskInput]] = field(default_factory=dict)
    junctions: Sequence[JunctionGroups] = ()


FunctionResult = HandlerOutcome | TaskOutcome
# Each of these functions may also have the parameters `batch` and `options`.
TaskFunction = Callable[..., FunctionResult]
ArrowFunction = Callable[..., Iterator[pa.RecordBatch]]
PandasFunction = Callable[..., Iterator["pd.DataFrame"]]
FrameFunction = Callable[..., DataFrame]
Options = Mapping[str, str]

_RUNNER = "a drain"
_SUPPLIED = ("batch", "options")  # the values that a function may get, by the names of its parameters


def in_arrow(function: ArrowFunction) -> "FrameTransform":
    """Return the transform of a function that turns the Arrow batches of a partition into batches of decisions.

    The function may yield any number of batches. Their columns are `sequence`, `result`, and optionally `message`,
    `error`, `delay`, `continued`, `push`, `junctions`.

    Raises InvalidArgument if the function has a parameter without a default that is neither its first one nor
    `batch` or `options`; so do `in_pandas` and `by_task`.
    """
    called = HandlerFunction.of(function, _RUNNER, _SUPPLIED, "the batches")

    def decide(tasks: DataFrame, batch: BatchContext, options: Options) -> DataFrame:
        def decided(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from map(decisions_batch, called(batches, batch=batch, options=options))

        return tasks.mapInArrow(decided, DECISION_SCHEMA)

    return as_one_frame(decide)


def in_pandas(function: PandasFunction) -> "FrameTransform":
    """Return the transform of a function from DataFrames of pandas to DataFrames of decisions; see `in_arrow`."""
    called = HandlerFunction.of(function, _RUNNER, _SUPPLIED, "the DataFrames")

    def convert(batches: Iterator[pa.RecordBatch], batch: BatchContext, options: Options) -> Iterator[pa.RecordBatch]:
        for frame in called((each.to_pandas() for each in batches), batch=batch, options=options):
            yield pa.RecordBatch.from_pandas(frame, preserve_index=False)

    return in_arrow(convert)


def by_task(function: TaskFunction) -> "TaskTransform":
    """Return the transform of a function of one task. Executors call it for the tasks of a partition, one by one.

    The function returns what a handler of a Worker returns, or a TaskOutcome: None is SUCCESS. If it returns UNDECIDED,
    the drain releases the task without a decision. If it raises an exception, the result is FAILURE, with the trace as
    error. Any other value fails the task at once. The function may be a coroutine function, or return a Future.
    """
    return TaskTransform(HandlerFunction.of(function, _RUNNER, _SUPPLIED))


def as_one_frame(function: FrameFunction) -> "FrameTransform":
    """Return the transform of a function of all tasks as a DataFrame. Raises the errors of `in_arrow`."""
    return FrameTransform(HandlerFunction.of(function, _RUNNER, _SUPPLIED, "the tasks"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform(ABC):
    """A function from a DataFrame of tasks to a DataFrame of decisions.

    A drain sets the condition under which it claims, its options, and for each round the batch with the owner.
    """

    condition: Condition = Condition.NONE
    options: Options = field(default_factory=dict)
    batch: BatchContext = field(default_factory=BatchContext)

    @abstractmethod
    def __call__(self, tasks: DataFrame) -> DataFrame:
        """Return the decisions on these tasks."""


@dataclass(frozen=True, slots=True)
class FrameTransform(Transform):
    """A transform that processes all tasks as one DataFrame."""

    function: HandlerFunction

    def __call__(self, tasks: DataFrame) -> DataFrame:
        """Return the decisions on these tasks."""
        decisions: object = self.function(tasks, batch=self.batch, options=self.options)
        if not isinstance(decisions, DataFrame):
            kind = type(decisions).__name__
            raise TaskQueueError(f"the transform returned a {kind}, not a DataFrame of decisions")
        return decisions


@dataclass(frozen=True, slots=True)
class TaskwiseTransform(Transform):
    """A transform whose executors decide lists of tasks of a partition, without Spark's own operations.

    Under a condition, a list has at most one task of an identifier. If the decision on it blocks the identifier, its
    later tasks get no decision.
    """

    @abstractmethod
    def decide_tasks(self, tasks: Sequence[Task]) -> list[dict[str, Any] | None]:
        """Return for each task a row of DECISION_SCHEMA, or None for no decision."""

    def __call__(self, tasks: DataFrame) -> DataFrame:
        """Return the decisions on these tasks."""
        return tasks.select(*TASK_COLUMNS).mapInArrow(self.decide, DECISION_SCHEMA)

    def decide(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the decisions on a partition, on an executor."""
        blocked: set[str] = set()
        for batch in batches:
            tasks = [task_from_row(values) for values in batch.to_pylist()]
            left, rows = dict.fromkeys(tasks), []
            for chosen in self._lists(tasks, blocked):
                for task, row in zip(chosen, self.decide_tasks(chosen), strict=True):
                    del left[task]
                    rows += [row] if row else []
                    if self.condition is not Condition.NONE and blocks_identifier(row, self.condition):
                        blocked.add(task.identifier)
            rows += [blocked_row(task.sequence) for task in left]
            yield pa.RecordBatch.from_pylist(rows, schema=DECISION_ARROW_SCHEMA)
            # Only the last identifier of a batch may have more tasks in the next one.
            blocked.intersection_update({tasks[-1].identifier} if tasks else ())

    def _lists(self, tasks: Sequence[Task], blocked: set[str]) -> Iterator[list[Task]]:
        """Yield one list of all tasks; under a condition, the first task of each identifier, then the second ..."""
        if self.condition is Condition.NONE:
            yield list(tasks)
            return
        waiting: dict[str, deque[Task]] = {}
        for task in tasks:
            waiting.setdefault(task.identifier, deque()).append(task)
        while waiting := {name: rest for name, rest in waiting.items() if rest and name not in blocked}:
            yield [rest.popleft() for rest in waiting.values()]


@dataclass(frozen=True, slots=True)
class TaskTransform(TaskwiseTransform):
    """A transform that calls a function with one task after another."""

    function: HandlerFunction

    def decide_tasks(self, tasks: Sequence[Task]) -> list[dict[str, Any] | None]:
        """Call the function with each task."""
        return [decision_row(partial(self.function, batch=self.batch, options=self.options), task) for task in tasks]


def decision_row(function: Callable[[Task], FunctionResult], task: Task) -> dict[str, Any] | None:
    """Call the function with a task, and return its decision as a row of DECISION_SCHEMA; None for no decision."""
    if isinstance(task.payload, UnreadablePayload):
        return outcome_row(task.sequence, TaskOutcome(decision_on(InvalidTask(task.payload.reason))))
    try:
        result = _awaited(function(task))
        return outcome_row(task.sequence, result if isinstance(result, TaskOutcome) else TaskOutcome(result))
    except (Exception, SystemExit) as error:  # noqa: BLE001 -- any error is the failure of this task only
        return outcome_row(task.sequence, TaskOutcome(decision_on(error)))


def blocked_row(sequence: int) -> dict[str, Any]:
    """Return the row of a task behind one that blocks its identifier. The commit drops it, and the task comes back."""
    return {"sequence": sequence, "result": "SUSPENSION", "delay": 0.0}


def _awaited(result: Any) -> Any:
    if isinstance(result, Future):
        return result.result()

    async def finish() -> Any:
        return await result

    return asyncio.run(finish()) if inspect.isawaitable(result) else result


def task_from_row(values: Mapping[str, Any]) -> Task:
    """Return the task of a row of TASK_COLUMNS. A payload that cannot be decoded becomes an UnreadablePayload."""
    text = values["payload"]
    return Task(**{**values, "payload": None if text is None else decode_json(text)})


def outcome_row(sequence: int, outcome: TaskOutcome) -> dict[str, Any] | None:
    """Return an outcome as a row of DECISION_SCHEMA, with its follow-ups if it is continued; None if undecided."""
    decision = decision_of(outcome.decision)
    if is_undecided(decision):
        return None
    tasks = [follow_up(topic, task) for topic, new in outcome.push.items() for task in new]
    groups = [
        {"topic": each.topic, "groups": _group_lists(each.groups), "junction": each.junction}
        for each in outcome.junctions
    ]
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


def _group_lists(groups: Sequence[Sequence[str]]) -> list[list[str]]:
    if any(isinstance(group, str) for group in groups):  # would become a group of its characters
        raise InvalidTask("a group must be a list of identifiers, not a text")
    return [list(group) for group in groups]


def blocks_identifier(row: Mapping[str, Any] | None, condition: Condition) -> bool:
    """Return whether a decision blocks later tasks of its identifier."""
    # The same rule as in taskq_internal.drop_overtaking_decisions.
    if row is None or row["result"] == "FAILURE":
        return True
    until_success = condition is Condition.SINGULAR_BY_IDENTIFIER_SUSPEND_UNTIL_SUCCESS
    return row["result"] == "SUSPENSION" and (row.get("delay") is not None or until_success)


def decisions_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert a batch to DECISION_ARROW_SCHEMA, because Spark has to know the types before the function runs.

    Raises InvalidTask if the batch does not hold decisions.
    """
    if not isinstance(batch, pa.RecordBatch):
        raise InvalidTask(f"the function yielded a {type(batch).__name__}, not a batch of decisions")
    batch = plain_batch(batch)
    check_decision_columns(dict.fromkeys(batch.schema.names, ""))
    columns = [_decision_column(batch, field) for field in DECISION_ARROW_SCHEMA]
    return pa.record_batch(columns, schema=DECISION_ARROW_SCHEMA)


def _decision_column(batch: pa.RecordBatch, target: pa.Field) -> pa.Array:
    if target.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, target.type)
    column = batch.column(target.name)
    if target.name == "result" and kinds.is_integer(column.type):
        # An unknown number becomes its digits. Staging then refuses it, and names the task.
        known = pc.and_(pc.greater_equal(column, 0), pc.less(column, len(RESULT_NAMES)))
        return pc.if_else(known, pa.array(RESULT_NAMES).take(pc.if_else(known, column, 0)), column.cast(pa.string()))
    if target.name == "delay" and kinds.is_duration(column.type):
        return pc.divide(column.cast(pa.duration("us")).cast(pa.int64()).cast(pa.float64()), 1e6)
    if kinds.is_nested(column.type):
        try:
            texts = [None if value is None else json_of(value, column.type) for value in column.to_pylist()]
        except (TypeError, ValueError) as error:
            raise InvalidTask(f"column {target.name} of the decisions is not JSON: {error}") from None
        return pa.array(texts, pa.string())
    try:
        return column.cast(target.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InvalidTask(f"column {target.name} of the decisions is {column.type}, not {target.type}") from None
