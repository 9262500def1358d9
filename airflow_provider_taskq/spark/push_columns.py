"""New tasks in a DataFrame: checked by their columns, then encoded for COPY."""

import json
from collections.abc import Callable, Mapping
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from airflow_provider_taskq.queue import InvalidTask
from airflow_provider_taskq.spark.binary_copy import binary_rows

COPY = (
    "COPY taskq.staged_task (stage, part, attempt, place, topic, identifier, payload, reference, suspended,"
    " available_at, delay, ttl, priority, depends_on) FROM STDIN (FORMAT binary)"
)
LONGEST = 3650 * 86_400 * 1_000_000
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_SPANS = ("interval day to second", "float", "double", *_WHOLE)
# Column -> the Spark types it may have.
_TYPES = {
    "identifier": ("string",),
    "topic": ("string",),
    "payload": ("string", "struct", "map", "array"),
    "reference": ("string",),
    "suspended": ("boolean",),
    "available_at": ("timestamp",),
    "delay": _SPANS,
    "ttl": _SPANS,
    "priority": _WHOLE,
    "depends_on": ("string", "array"),
}
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def check_columns(columns: Mapping[str, str], topic: str | None) -> None:
    """Refuses a DataFrame that cannot be tasks, by its columns' names and Spark types."""
    for name, kind in columns.items():
        if name not in _TYPES:
            raise InvalidTask(f"new tasks have no column {name!r}; theirs are {', '.join(_TYPES)}")
        if kind != "void" and kind.partition("<")[0] not in _TYPES[name]:
            raise InvalidTask(f"the tasks' column {name} is {kind}, not {' or '.join(_TYPES[name])}")
    if "identifier" not in columns:
        raise InvalidTask(f"new tasks need a column identifier; these have {', '.join(columns) or 'none'}")
    if ("topic" in columns) == (topic is not None):
        raise InvalidTask("the tasks' topic is named by the option topic or by a column topic: by one of the two")
    for name in ("decimal", "binary", "interval", "variant"):
        if name in columns.get("payload", ""):
            raise InvalidTask(f"the payload holds a {name}, which JSON lacks: say how it is written by to_json")


def staged_tasks(batch: pa.RecordBatch, stage: bytes, part: int, attempt: int, first: int) -> pa.Buffer:
    """A batch of tasks as rows for COPY, counted in their part from `first`; InvalidTask where they cannot be sent."""
    count = batch.num_rows
    tasks = _Tasks(batch, part, first)
    return binary_rows(
        [
            pa.repeat(pa.scalar(stage, pa.binary()), count),
            pa.repeat(pa.scalar(part, pa.int32()), count),
            pa.repeat(pa.scalar(attempt, pa.int64()), count),
            pa.array(range(first, first + count), pa.int64()),
            tasks.texts("topic"),
            tasks.texts("identifier"),
            tasks.payloads(),
            tasks.texts("reference"),
            tasks.column("suspended"),
            tasks.column("available_at"),
            tasks.durations("delay"),
            tasks.durations("ttl"),
            tasks.priorities(),
            tasks.dependencies(),
        ]
    )


class _Tasks:
    """The columns of one batch, each as it is stored."""

    def __init__(self, batch: pa.RecordBatch, part: int, first: int) -> None:
        self.batch = batch
        self.part = part
        self.first = first

    def column(self, name: str) -> pa.Array:
        """A column that may be left out."""
        return self.batch.column(name) if name in self.batch.schema.names else pa.nulls(self.batch.num_rows)

    def texts(self, name: str) -> pa.Array:
        """A column of texts, none of which holds a NUL."""
        texts = self.column(name)
        if texts.null_count < len(texts):
            self._refuse_any(pc.match_substring(texts, "\x00"), f"its {name} holds a NUL")
        return texts

    def payloads(self) -> pa.Array:
        """Payloads as JSON texts: as they are, the database parses them; or made from structs, maps and arrays."""
        payloads = self.column("payload")
        if kinds.is_string(payloads.type) or kinds.is_null(payloads.type):
            return self.texts("payload")
        return self._encoded(payloads, lambda value: _JSON.encode(_plain(value, payloads.type)), "payload")

    def durations(self, name: str) -> pa.Array:
        """Intervals, or seconds, as microseconds: a "day" in PostgreSQL would be 23 or 25 hours twice a year."""
        given = self.column(name)
        if kinds.is_null(given.type) or kinds.is_duration(given.type):
            micros = given.cast(pa.duration("us")).cast(pa.int64())
        else:
            scaled = pc.round(pc.multiply(given.cast(pa.float64()), 1e6))
            sane = pc.less_equal(pc.abs(scaled), float(LONGEST))  # not-a-number is not less than anything
            self._refuse_any(pc.invert(sane), "its delay or ttl is longer than 3650 days, or no number")
            micros = scaled.cast(pa.int64())
        self._refuse_any(pc.greater(micros, LONGEST), "its delay or ttl is longer than 3650 days")
        return micros.cast(pa.duration("us"))

    def priorities(self) -> pa.Array:
        """Priorities as the database has them; one that is not even an int meets its rule here."""
        priorities = self.column("priority").cast(pa.int64())
        far = pc.or_(pc.less(priorities, -(2**31)), pc.greater(priorities, 2**31 - 1))
        self._refuse_any(far, "its priority is outside -100..100")
        return priorities.cast(pa.int32())

    def dependencies(self) -> pa.Array:
        """Dependencies as JSON lists of pairs of topic and identifier."""
        given = self.column("depends_on")
        if given.null_count == len(given):
            return pa.nulls(len(given))
        return self._encoded(given, _pairs, "depends_on")

    def _encoded(self, column: pa.Array, encode: Callable[[Any], str], name: str) -> pa.Array:
        """Each value that is there as a text."""
        texts = []
        for place, value in enumerate(column.to_pylist()):
            try:
                text = None if value is None else encode(value)
            except (TypeError, ValueError) as error:
                self._refuse(place, f"its {name} {error}")
            texts.append(text)
        return pa.array(texts, pa.string())

    def _refuse_any(self, wrong: pa.Array, reason: str) -> None:
        """Refuses the first task for which this holds."""
        place = pc.index(wrong, True).as_py()
        if place >= 0:
            self._refuse(place, reason)

    def _refuse(self, place: int, reason: str) -> None:
        identifier = self.batch.column("identifier")[place].as_py()
        shown = "null" if identifier is None else repr(identifier[:100])
        raise InvalidTask(f"row {self.first + place} of partition {self.part} (identifier {shown}): {reason}")


def _plain(value: Any, kind: pa.DataType) -> Any:
    """A value as JSON has it: structs and maps as objects, times in ISO 8601."""
    if value is None:
        return None
    if kinds.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    if kinds.is_map(kind):
        return {_key(key): _plain(item, kind.item_type) for key, item in value}
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        return [_plain(item, kind.value_type) for item in value]
    return value.isoformat() if isinstance(value, date) else value


def _key(key: Any) -> str:
    """The key of a map as the name of an object's member."""
    return key if isinstance(key, str) else json.dumps(_plain(key, pa.null()))


def _pairs(given: Any) -> str:
    """A list of pairs as JSON; ValueError with the reason for anything else."""
    found = json.loads(given) if isinstance(given, str) else given
    if not isinstance(found, list):
        raise ValueError("is no list of pairs of a topic and an identifier")  # noqa: TRY004
    pairs = [list(pair.values()) if isinstance(pair, dict) else pair for pair in found]
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise ValueError("is no list of pairs of a topic and an identifier")
    return _JSON.encode(pairs)
