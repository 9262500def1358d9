"""Decisions in a DataFrame: checked by their columns, then by their values, and made ready for COPY."""

import json
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from airflow_provider_taskq.queue import InvalidTask, Result
from airflow_provider_taskq.spark.binary_copy import binary_rows

COPY = "COPY taskq.staged (stage, part, attempt, sequence, result, output, error, delay) FROM STDIN (FORMAT binary)"
MAX_ERROR = 10_000
_RESULTS = pa.array([result.name for result in sorted(Result)])
_NAMES = ", ".join(result.name for result in sorted(Result))
_WHOLE = {"tinyint", "smallint", "int", "bigint"}
# Column -> the Spark types it may have; those with a default may be left out.
_TYPES = {
    "sequence": {"int", "bigint"},
    "result": {"string", *_WHOLE},
    "message": {"string", "void"},
    "error": {"string", "void"},
    "delay": {"interval day to second", "float", "double", "void", *_WHOLE},
}
_REQUIRED = ("sequence", "result")


def _refuse_constant(name: str) -> NoReturn:
    """Refuses NaN and the infinities, which Python reads and JSON lacks."""
    raise ValueError(f"{name} is not a JSON number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def check_columns(columns: dict[str, str]) -> None:
    """Refuses a DataFrame that cannot be decisions, by its columns' names and Spark types."""
    for name, kind in columns.items():
        if name not in _TYPES:
            raise InvalidTask(f"decisions have no column {name!r}; theirs are {', '.join(_TYPES)}")
        if kind not in _TYPES[name]:
            raise InvalidTask(f"the decisions' column {name} is {kind}, not {' or '.join(sorted(_TYPES[name]))}")
    for name in _REQUIRED:
        if name not in columns:
            raise InvalidTask(f"decisions need a column {name}; these have {', '.join(columns) or 'none'}")


def staged_rows(batch: pa.RecordBatch, stage: bytes, part: int, attempt: int) -> pa.Buffer:
    """A batch of decisions as rows for COPY; InvalidTask, naming a task, where one is not valid."""
    sequences = batch.column("sequence")
    if sequences.null_count:
        raise InvalidTask("a decision has no sequence: it is null, so no task can be told from it")
    results = _result_numbers(batch.column("result"), sequences)
    delays = _column(batch, "delay")
    count = batch.num_rows
    return binary_rows(
        [
            pa.repeat(pa.scalar(stage, pa.binary()), count),
            pa.repeat(pa.scalar(part, pa.int32()), count),
            pa.repeat(pa.scalar(attempt, pa.int64()), count),
            sequences.cast(pa.int64()),
            results.cast(pa.int16()),
            _messages(_column(batch, "message"), sequences),
            _errors(_column(batch, "error"), sequences),
            _intervals(delays, results, sequences),
        ]
    )


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """A column that may be left out."""
    return batch.column(name) if name in batch.schema.names else pa.nulls(batch.num_rows)


def _result_numbers(results: pa.Array, sequences: pa.Array) -> pa.Array:
    """Results as their numbers, from names or numbers."""
    if kinds.is_integer(results.type):
        numbers = pc.if_else(pc.and_(pc.greater_equal(results, 0), pc.less(results, len(_RESULTS))), results, None)
    else:
        numbers = pc.index_in(results, value_set=_RESULTS)
    if numbers.null_count:
        place = pc.index(pc.is_null(numbers), True).as_py()
        value = results[place].as_py()
        shown = "null" if value is None else repr(value if len(str(value)) <= 30 else str(value)[:30] + "...")
        raise InvalidTask(f"the decision on task {sequences[place]} has the result {shown}: there are {_NAMES}")
    return numbers


def _messages(messages: pa.Array, sequences: pa.Array) -> pa.Array:
    """Messages as they are, each of them JSON that PostgreSQL can store and read back."""
    for place, text in enumerate(messages.to_pylist()):
        if text is not None and not _is_plain(text) and (reason := _flaw(text)):
            raise InvalidTask(f"the message of the decision on task {sequences[place]} {reason}")
    return messages


def _is_plain(text: str) -> bool:
    """Whether this is surely JSON that can be stored: told in an eighth of the time that `_flaw` takes."""
    try:
        end = _DECODER.raw_decode(text)[1]
    except (ValueError, RecursionError):
        return False
    return end == len(text) and "\\u" not in text


def _flaw(text: str) -> str | None:
    """What is wrong with a JSON text; never the text itself, which is nobody's to see in a log."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        return f"is not JSON: {error.msg} at character {error.pos}"
    except (ValueError, RecursionError) as error:
        return f"is not JSON: {error}"
    return "holds a NUL or a lone surrogate" if "\\u" in text and not _storable(value) else None


def _storable(value: Any) -> bool:
    """Whether every text in a JSON value can be a text in PostgreSQL."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\\u0000" not in text.replace("\\\\", "")


def _errors(errors: pa.Array, sequences: pa.Array) -> pa.Array:
    """Errors, each cut to its end, where the cause of a trace stands."""
    if errors.null_count == len(errors):
        return errors
    if (found := pc.match_substring(errors, "\x00")) and pc.any(found).as_py():
        place = pc.index(found, True).as_py()
        raise InvalidTask(f"the error of the decision on task {sequences[place]} holds a NUL")
    return pc.utf8_slice_codeunits(errors, -MAX_ERROR)


def _intervals(delays: pa.Array, results: pa.Array, sequences: pa.Array) -> pa.Array:
    """Delays in microseconds: a "day" in PostgreSQL would be 23 or 25 hours twice a year."""
    if delays.null_count == len(delays):
        return delays
    wrong = pc.and_(pc.is_valid(delays), pc.not_equal(results, int(Result.SUSPENSION)))
    if pc.any(wrong).as_py():
        place = pc.index(wrong, True).as_py()
        raise InvalidTask(f"the decision on task {sequences[place]} has a delay, which only a SUSPENSION takes")
    if kinds.is_duration(delays.type):
        micros = delays.cast(pa.duration("us")).cast(pa.int64())
    else:
        micros = _microseconds(delays, sequences)
    return micros.cast(pa.duration("us"))


def _microseconds(seconds: pa.Array, sequences: pa.Array) -> pa.Array:
    """Seconds as whole microseconds."""
    scaled = pc.round(pc.multiply(seconds.cast(pa.float64()), 1e6))
    far = pc.invert(pc.less(pc.abs(scaled), 9e18))  # not-a-number is not less than anything either
    if pc.any(far).as_py():
        raise InvalidTask(f"the decision on task {sequences[pc.index(far, True).as_py()]} has a delay of no length")
    return scaled.cast(pa.int64())
