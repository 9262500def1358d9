"""Checks the columns of decisions and new tasks in a DataFrame, and encodes their rows for a binary COPY."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
from pyspark.sql.datasource import WriterCommitMessage

from airflow_provider_taskq.queue import InvalidTask, Result
from airflow_provider_taskq.spark.binary_copy import binary_rows
from airflow_provider_taskq.spark.columns import json_of

MAX_ERROR = 10_000  # characters
_DAY = 86_400 * 1_000_000  # microseconds
_MAX_DELAY, _MAX_SNOOZE = 3650 * _DAY, 100_000_000 * _DAY

RESULT_NAMES = [result.name for result in sorted(Result)]  # no Arrow array: to make one, PyArrow imports pandas
_ALL_RESULTS = ", ".join(result.name for result in sorted(Result))
_WHOLE = ("bigint", "int", "smallint", "tinyint")
_DURATION = (*_WHOLE, "double", "float", "interval day to second")
# The Spark types that each column may have. Any optional column may be void.
_DECISION_TYPES = {
    "sequence": ("bigint", "int"),
    "result": (*_WHOLE, "string"),
    "message": ("string",),
    "error": ("string",),
    "delay": _DURATION,
    "continued": ("boolean",),
    "push": ("string", "array"),
    "junctions": ("string", "array"),
}
_TASK_TYPES = {
    "identifier": ("string",),
    "topic": ("string",),
    "payload": ("string", "struct", "map", "array", "variant"),
    "reference": ("string",),
    "suspended": ("boolean",),
    "available_at": ("timestamp",),
    "delay": _DURATION,
    "ttl": _DURATION,
    "priority": _WHOLE,
    "depends_on": ("string", "array"),
}
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Copy:
    """Rows of a staging table, for a COPY in the binary format.

    PostgreSQL refuses all rows if one of `texts` is not JSON, and `described` returns what the text of a row is.
    """

    table: str
    rows: pa.Buffer
    texts: pa.Array | None = None
    described: Callable[[int], str] = str

    def refuse_json(self) -> None:
        """Raise InvalidTask for the first text that is not JSON. Never quote it, because it may be private."""
        for place, text in enumerate([] if self.texts is None else self.texts.to_pylist()):
            try:
                json.loads("null" if text is None else text, parse_constant=_refuse_constant)
            except json.JSONDecodeError as error:
                reason = f"{error.msg} at character {error.pos}"
            except (ValueError, RecursionError) as error:
                reason = str(error)
            else:
                continue
            raise InvalidTask(f"{self.described(place)} is not JSON: {reason}")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")  # Python's decoder would accept NaN and the infinities


def check_decision_columns(columns: Mapping[str, str]) -> None:
    """Check that these columns (name to Spark type, or to an empty text) can be decisions. Raises InvalidTask."""
    _check_columns(columns, "decisions", _DECISION_TYPES, ("sequence", "result"))


def check_task_columns(columns: Mapping[str, str], topic: str | None) -> None:
    """Check that these columns (name to Spark type) can be new tasks. Raises InvalidTask."""
    _check_columns(columns, "new tasks", _TASK_TYPES, ("identifier",))
    if ("topic" in columns) == (topic is not None):
        raise InvalidTask("name the topic of the new tasks either by the option topic or by a column topic")
    if "interval " in columns.get("payload", ""):
        raise InvalidTask("the payload holds an interval, which is not JSON: convert the column with to_json")


def _check_columns(
    columns: Mapping[str, str], rows: str, types: Mapping[str, Sequence[str]], required: Sequence[str]
) -> None:
    for name, kind in columns.items():
        if name not in types:
            raise InvalidTask(f"unknown column {name!r} in the {rows}: use {', '.join(types)}")
        allowed = ("", *types[name], *([] if name in required else ["void"]))
        if kind.partition("<")[0] not in allowed:
            raise InvalidTask(f"column {name} of the {rows} is {kind}, not {' or '.join(types[name])}")
    for name in required:
        if name not in columns:
            raise InvalidTask(f"{rows} need a column {name}: these have {', '.join(columns) or 'none'}")


@dataclass(slots=True)
class Attempt(WriterCommitMessage):
    """An attempt of a Spark task that stages rows of a partition, and its message to the driver.

    `count` is the number of rows that it has staged, and `placed` that of the new tasks that it has encoded. In a
    stream, `query` is Spark's ID of the query.
    """

    stage: str
    part: int
    number: int
    count: int = 0
    placed: int = 0
    query: str | None = None

    def columns(self, count: int) -> list[pa.Array]:
        """Return the first columns of `count` rows of any staging table."""
        return [
            pa.repeat(pa.scalar(UUID(self.stage).bytes, pa.binary()), count),
            pa.repeat(pa.scalar(self.part, pa.int32()), count),
            pa.repeat(pa.scalar(self.number, pa.int64()), count),
        ]

    def places(self, count: int) -> pa.Array:
        """Return the places of the next `count` new tasks."""
        self.placed += count
        return pa.array(range(self.placed - count, self.placed), pa.int64())


def encode_decisions(batch: pa.RecordBatch, attempt: Attempt) -> Copy:
    """Encode decisions. Raises InvalidTask, which names the task, for an invalid one."""
    sequences = batch.column("sequence")
    if sequences.null_count:
        raise InvalidTask("a decision has no sequence: the column sequence is null")
    rows = _RowEncoder(batch, lambda place: f"the decision on task {sequences[place]}")
    results, messages = result_numbers(batch), optional(batch, "message")
    columns = [
        *attempt.columns(batch.num_rows),
        sequences.cast(pa.int64()),
        results.cast(pa.int16()),
        messages,
        pc.utf8_slice_codeunits(rows.texts("error").cast(pa.string()), -MAX_ERROR),  # a trace ends with its cause
        rows.snoozes(results),
        optional(batch, "continued").cast(pa.bool_()),
    ]
    return Copy(
        "staged",
        binary_rows(columns),
        messages,
        lambda place: f"the message of the decision on task {sequences[place]}",
    )


def optional(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column, or nulls if the batch has no such column."""
    return batch.column(name) if name in batch.schema.names else pa.nulls(batch.num_rows)


def result_numbers(batch: pa.RecordBatch) -> pa.Array:
    """Return the results of decisions as numbers. Raises InvalidTask for an unknown one."""
    results = batch.column("result")
    if kinds.is_integer(results.type):
        numbers = pc.if_else(pc.and_(pc.greater_equal(results, 0), pc.less(results, len(RESULT_NAMES))), results, None)
    else:
        numbers = pc.index_in(results, value_set=pa.array(RESULT_NAMES))
    if numbers.null_count:
        place = pc.index(pc.is_null(numbers), True).as_py()
        value = results[place].as_py()
        shown = "null" if value is None else repr(value if len(str(value)) <= 30 else str(value)[:30] + "...")
        raise InvalidTask(
            f"unknown result {shown} of the decision on task {batch.column('sequence')[place]}: use {_ALL_RESULTS}"
        )
    return numbers


def task_copies(batch: pa.RecordBatch, attempt: Attempt) -> list[Copy]:
    """Encode the new tasks of a push. Raises InvalidTask, which names the row, for one that cannot be staged."""
    first, identifiers = attempt.placed, batch.column("identifier")

    def described(place: int) -> str:
        identifier = identifiers[place].as_py()
        shown = "null" if identifier is None else repr(identifier[:100])
        return f"row {first + place} of partition {attempt.part} (identifier {shown})"

    return [encode_tasks(batch, attempt, described)]


def encode_tasks(
    batch: pa.RecordBatch, attempt: Attempt, described: Callable[[int], str], parents: pa.Array | None = None
) -> Copy:
    """Encode new tasks. Raises InvalidTask, with `described` of the row, for one that the table cannot store.

    :param parents: the decided tasks that these tasks follow.
    """
    tasks, count = _RowEncoder(batch, described), batch.num_rows
    payloads = tasks.payloads()
    columns = [
        *attempt.columns(count),
        attempt.places(count),
        pa.nulls(count) if parents is None else parents,
        tasks.texts("topic"),
        tasks.texts("identifier"),
        payloads,
        tasks.texts("reference"),
        optional(batch, "suspended"),
        optional(batch, "available_at"),
        tasks.durations("delay"),
        tasks.durations("ttl"),
        tasks.priorities(),
        tasks.dependencies(),
        optional(batch, "junction"),
    ]
    return Copy("staged_task", binary_rows(columns), payloads, lambda place: f"{described(place)}: its payload")


@dataclass(frozen=True, slots=True)
class _RowEncoder:
    """Converts the columns of one batch of decisions or new tasks. `described` names a row in an error."""

    batch: pa.RecordBatch
    described: Callable[[int], str]

    def texts(self, name: str) -> pa.Array:
        texts = optional(self.batch, name)
        if texts.null_count < len(texts):
            self._refuse_any(pc.match_substring(texts, "\x00"), f"its {name} holds a NUL")
        return texts

    def payloads(self) -> pa.Array:
        """Return payloads as JSON texts. The COPY checks those that the DataFrame has as strings."""
        payloads = optional(self.batch, "payload")
        if kinds.is_string(payloads.type) or kinds.is_null(payloads.type):
            return self.texts("payload")
        return self._encoded(payloads, lambda value: json_of(value, payloads.type), "payload")

    def durations(self, name: str, most: int = _MAX_DELAY) -> pa.Array:
        """Return durations of up to `most` microseconds, which the DataFrame has as intervals or in seconds."""
        column = optional(self.batch, name)  # becomes microseconds: a "day" of PostgreSQL may have 23 or 25 hours
        wrong = f"its {name} is not a number, or longer than {most // _DAY} days"
        if not kinds.is_null(column.type) and not kinds.is_duration(column.type):
            column = pc.round(pc.multiply(column.cast(pa.float64()), 1e6))
            self._refuse_any(
                pc.invert(pc.less_equal(pc.abs(column), float(most))), wrong
            )  # NaN is not less than anything
            column = column.cast(pa.int64())
        durations = column.cast(pa.duration("us"))
        self._refuse_any(pc.greater(durations.cast(pa.int64()), most), wrong)
        return durations

    def snoozes(self, results: pa.Array) -> pa.Array:
        """Return the delays of decisions: a SUSPENSION may have one, and a FAILURE a negative one, which is final."""
        delays = self.durations("delay", _MAX_SNOOZE)
        final = pc.and_(pc.equal(results, int(Result.FAILURE)), pc.less(delays.cast(pa.int64()), 0))
        allowed = pc.or_(pc.equal(results, int(Result.SUSPENSION)), final)
        self._refuse_any(pc.and_(pc.is_valid(delays), pc.invert(allowed)), "only a SUSPENSION takes a delay")
        return delays

    def priorities(self) -> pa.Array:
        """Return priorities as 32-bit integers, which the staging table needs. The database checks their range."""
        priorities = optional(self.batch, "priority").cast(pa.int64())
        far = pc.or_(pc.less(priorities, -(2**31)), pc.greater(priorities, 2**31 - 1))
        self._refuse_any(far, "its priority is outside -100..100")
        return priorities.cast(pa.int32())

    def dependencies(self) -> pa.Array:
        """Return dependencies as JSON lists of pairs of topic and identifier."""
        column = optional(self.batch, "depends_on")
        if column.null_count == len(column):
            return pa.nulls(len(column))
        return self._encoded(column, _pairs_text, "depends_on")

    def _encoded(self, column: pa.Array, encode: Callable[[Any], str], name: str) -> pa.Array:
        texts = []
        for place, value in enumerate(column.to_pylist()):
            try:
                text = None if value is None else encode(value)
            except (TypeError, ValueError) as error:
                self._refuse(place, f"its {name} {error}")
            texts.append(text)
        return pa.array(texts, pa.string())

    def _refuse_any(self, wrong: pa.Array, reason: str) -> None:
        place = pc.index(wrong, True).as_py()
        if place >= 0:
            self._refuse(place, reason)

    def _refuse(self, place: int, reason: str) -> NoReturn:
        raise InvalidTask(f"{self.described(place)}: {reason}")


def _pairs_text(value: Any) -> str:
    """Encode dependencies, a list or JSON text of pairs or structs, as JSON. Raises ValueError for anything else."""
    found = json.loads(value) if isinstance(value, str) else value
    if isinstance(found, list):
        pairs = [list(pair.values()) if isinstance(pair, dict) else pair for pair in found]
        if all(isinstance(pair, list) and [type(text) for text in pair] == [str, str] for pair in pairs):
            return _JSON.encode(pairs)
    raise ValueError("is not a list of pairs of a topic and an identifier")
