"""Batches of decisions in the one form that Spark needs to know beforehand, from whatever a function makes."""

import json
from collections.abc import Iterable
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from airflow_provider_taskq.queue import InvalidTask, Result

DECISIONS = (
    "sequence long, result string, message string, error string, delay double, continued boolean,"
    " push string, junctions string"
)
ARROW = pa.schema(
    [
        ("sequence", pa.int64()),
        ("result", pa.string()),
        ("message", pa.string()),
        ("error", pa.string()),
        ("delay", pa.float64()),
        ("continued", pa.bool_()),
        ("push", pa.string()),
        ("junctions", pa.string()),
    ]
)
_RESULTS = pa.array([result.name for result in sorted(Result)])


def check_names(names: Iterable[str]) -> None:
    """Raises InvalidTask for the first name that is not a column of decisions."""
    for name in names:
        if name not in ARROW.names:
            raise InvalidTask(f"decisions have no column {name!r}; theirs are {', '.join(ARROW.names)}")


def decisions_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch with all columns of decisions, those that are missing empty; InvalidTask where it cannot be one."""
    if not isinstance(batch, pa.RecordBatch):
        raise InvalidTask(f"the function yielded a {type(batch).__name__}, not a batch of decisions")
    check_names(batch.schema.names)
    for name in ("sequence", "result"):
        if name not in batch.schema.names:
            raise InvalidTask(f"decisions need a column {name}; these have {', '.join(batch.schema.names) or 'none'}")
    return pa.record_batch([_column(batch, field) for field in ARROW], schema=ARROW)


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    """One column in its type."""
    if field.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, field.type)
    column = batch.column(field.name)
    if field.name == "result" and kinds.is_integer(column.type):
        return _names(column)
    if field.name == "delay" and kinds.is_duration(column.type):
        return pc.divide(column.cast(pa.duration("us")).cast(pa.int64()).cast(pa.float64()), 1e6)
    if kinds.is_nested(column.type):
        return pa.array(
            [None if value is None else json.dumps(value, default=_plain) for value in column.to_pylist()], pa.string()
        )
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InvalidTask(f"the decisions' column {field.name} is {column.type}, not {field.type}") from None


def _names(numbers: pa.Array) -> pa.Array:
    """Results by name from their numbers; what is none stays a number, and is refused where decisions are staged."""
    known = pc.and_(pc.greater_equal(numbers, 0), pc.less(numbers, len(_RESULTS)))
    return pc.if_else(known, _RESULTS.take(pc.if_else(known, numbers, 0)), numbers.cast(pa.string()))


def _plain(value: object) -> object:
    """What JSON lacks: moments as texts, durations as seconds."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    raise InvalidTask(f"a follow-up holds a {type(value).__name__}, which is no JSON")
