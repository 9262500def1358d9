"""Conversion between Python values and PostgreSQL's: JSON, durations, timestamps, rows.

A value that Python cannot represent never hides the rows around it: JSON becomes an `UnreadablePayload`, and a
timestamp or an interval out of range becomes the nearest bound.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import accumulate
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg import postgres
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader, PyFormat
from psycopg.pq import Format
from psycopg.rows import BaseRowFactory, RowMaker
from psycopg.types.datetime import IntervalLoader
from psycopg.types.json import Json as PsycopgJson

from airflow_provider_taskq.queue.arguments import to_integer, to_timedelta
from airflow_provider_taskq.queue.models import Json, Polled, State, Task, UnreadablePayload

T = TypeVar("T")
JsonDefault: TypeAlias = Callable[[Any], Any]
JsonDumps: TypeAlias = Callable[[Any], str | bytes]
JsonEncoder: TypeAlias = Callable[[Any], str | None]

# JSON

MAX_DEPTH = 100
_MAX_DIGITS = 308  # an integer with more digits may exceed a double; one with many more exceeds Python's own limit
_DIGITS = str.maketrans("123456789", "000000000")
_LONG_INTEGER = "0" * (_MAX_DIGITS + 1)
_NO_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[^][{}"]+')

# Created at import: near the end of the stack there is no room for a constructor's frames.
_TOO_DEEP = UnreadablePayload("unreadable JSON: it is nested deeper than Python can decode")
_OUT_OF_RANGE = UnreadablePayload("unreadable JSON: it holds a number outside the range of a double")
_NOT_JSON = UnreadablePayload("unreadable JSON: Python finds no valid JSON in it")


_NO_NUMBER = UnreadablePayload("unreadable JSON: it holds NaN or an infinity, which JSON does not have")


class _Defect(ValueError):
    """A reason that continues "its payload ..."."""


class _NotFinite(ValueError):
    """NaN or an infinity."""


class _OutOfRange(ValueError):
    """A number that no double holds."""


def _finite_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _OutOfRange
    return value


def _finite_integer(text: str) -> int:
    _finite_float(text)
    return int(text)


def _refuse_constant(_: str) -> None:
    raise _NotFinite


# Integers are checked only in a text with enough digits: the hook costs more than the rest of a small payload.
_DECODER = json.JSONDecoder(parse_float=_finite_float, parse_constant=_refuse_constant)
_EXACT_DECODER = json.JSONDecoder(parse_float=_finite_float, parse_int=_finite_integer, parse_constant=_refuse_constant)


def decode_json(text: str) -> Json:
    """Decode a JSON text without ever raising an error.

    Return an `UnreadablePayload` with the reason for nesting deeper than the rest of the stack, for a number outside
    the range of a double (with an exponent or as an integer), and for a text that is not JSON.
    """
    try:
        value: Json = (_EXACT_DECODER if _may_hold_long_integer(text) else _DECODER).decode(text)
    except RecursionError:
        return _TOO_DEEP
    except _OutOfRange:
        return _OUT_OF_RANGE
    except _NotFinite:
        return _NO_NUMBER
    except json.JSONDecodeError as error:
        return UnreadablePayload(f"unreadable JSON: {error.msg}, at character {error.pos + 1}")
    except ValueError:
        return _NOT_JSON
    return value


def json_dumps(default: JsonDefault | None = None) -> JsonDumps:
    """Return an encoder of compact JSON.

    :param default: converts an object that JSON does not have, as that of `json.dumps`.
    """

    def converted(value: Any) -> Any:
        made = default(value) if default is not None else None
        if defect := _key_defect(made):
            raise _Defect(defect)
        return made

    encoder = json.JSONEncoder(
        ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=None if default is None else converted
    )
    return encoder.encode


_COMPACT = json_dumps()


def json_text(value: Any, dumps: JsonDumps = _COMPACT) -> str | None:
    """Encode a value as JSON, compact unless `dumps` writes it in another way. Return None for None.

    :raises ValueError: if some client could not read the JSON back. The message continues "its payload ...".
    """
    if value is None:
        return None
    try:
        encoded = dumps(value)
        text = encoded if isinstance(encoded, str) else str(encoded, "utf-8")
        text.encode()
    except UnicodeError:
        raise ValueError("holds a lone surrogate") from None
    except RecursionError:
        raise ValueError(f"is nested deeper than {MAX_DEPTH} levels, or than the stack has room for") from None
    except _Defect:
        raise
    except (TypeError, ValueError) as error:
        hint = _CONVERT if dumps is _COMPACT and isinstance(error, TypeError) else ""
        raise ValueError(_NOT_FINITE if "float" in str(error) else f"is not JSON: {error}{hint}") from None
    may_have_keys = dumps is not _COMPACT or _MAYBE_CONVERTED_KEY.search(text)
    if defect := json_defect(text) or (_key_defect(value) if may_have_keys else None):
        raise ValueError(defect)
    if dumps is not _COMPACT and isinstance(made := decode_json(text), UnreadablePayload):
        raise ValueError(_NOT_FINITE if made is _NO_NUMBER else f"is not JSON: {made.reason}")
    return text


def connection_dumps(conn: psycopg.Connection[Any]) -> JsonDumps:
    """Return the encoder that `psycopg.types.json.set_json_dumps` has set for a connection; ours if it has set none."""
    dumper: Any = conn.adapters.get_dumper(PsycopgJson, PyFormat.TEXT)(PsycopgJson, conn)
    return _COMPACT if dumper.dumps is json.dumps else dumper.dumps


# A key that is a number, a bool or None, as Python's encoder writes it. Most payloads are spared the search for one.
_MAYBE_CONVERTED_KEY = re.compile(
    r'":(?:(?<=\d":)|(?<=[{,]"true":)|(?<="false":)|(?<="null":)|(?<="NaN":)|(?<=Infinity":))'
)
_CONVERT = "; json_default=str, or psycopg's set_json_dumps, would convert it"
_NOT_FINITE = "holds NaN or an infinity, which JSON does not have: write None"


def _key_defect(value: object) -> str | None:
    """Return why a key would come back as another one; None if all keys are texts."""
    if not isinstance(value, dict | list | tuple):
        return None
    containers = [value]
    for container in containers:  # which grows
        if isinstance(container, dict):
            for key in container:
                if not isinstance(key, str):
                    return f"has a key that is a {type(key).__name__}: a key of JSON is a str"
            inner: Iterable[object] = container.values()
        else:
            inner = container
        containers += [each for each in inner if isinstance(each, dict | list | tuple)]
    return None


def json_defect(text: str) -> str | None:
    """Return why some client could not read a JSON text that Python encoded; None if every client can read the text.

    The reason continues the words "its payload ...". The database takes such texts.
    """
    if len(text) > 2 * MAX_DEPTH and text.count("[") + text.count("{") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
        return f"is nested deeper than {MAX_DEPTH} levels"
    if _may_hold_long_integer(text) and decode_json(text) is _OUT_OF_RANGE:
        return "holds a number outside the range of a double, which ends at 1.7976931348623157e308"
    return None


def _may_hold_long_integer(text: str) -> bool:
    # Digits in a string or a fraction give a false alarm, which costs only a slower decoding.
    return len(text) > _MAX_DIGITS and _LONG_INTEGER in text.translate(_DIGITS)


def _depth(text: str) -> int:
    brackets = _NO_BRACKETS.sub("", text)
    return max(accumulate(1 if bracket in "[{" else -1 for bracket in brackets), default=0)


class JsonLoader(Loader):
    """Loads json and jsonb with `decode_json`, in the encoding of the connection."""

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        encoding = self.connection.info.encoding if self.connection else "utf-8"
        self._encoding = "utf-8" if encoding == "ascii" else encoding  # SQL_ASCII sends what was stored

    def load(self, data: Buffer) -> Any:
        """Return the value; an UnreadablePayload for a value that cannot be decoded."""
        try:
            return decode_json(str(data, self._encoding))
        except RecursionError:  # the stack had no room for the call of decode_json
            return _TOO_DEEP
        except ValueError:
            return _NOT_JSON


# Timestamps, durations

# As in taskq_internal.clamp_moment. The SQL functions store no moment outside these; a superuser's UPDATE may.
FIRST_MOMENT = datetime(1, 1, 1, tzinfo=UTC)
LAST_MOMENT = datetime(9999, 12, 31, tzinfo=UTC)
MAX_TIMEDELTA = timedelta(days=999_999_999)
MAX_STORED_DURATION = timedelta(days=3650)  # as in taskq_internal.is_duration
_MAX_INTERVAL = timedelta(days=80_000_000)  # PostgreSQL 14 reads no more hours, and adds them to no moment
_FIRST_AND_LAST_DAY = {b"0001-01-01", b"9999-12-31"}


def interval_text(duration: timedelta | None) -> str | None:
    """Format a duration for PostgreSQL in hours, because a "day" there has 23 or 25 hours twice a year.

    Not in microseconds: PostgreSQL 14 reads no more than 2,147 seconds of them. A duration that PostgreSQL cannot add
    to a moment is cut. The SQL functions refuse or clamp far shorter ones.
    """
    if duration is None:
        return None
    length = min(abs(duration), _MAX_INTERVAL)
    hours, rest = divmod(length, timedelta(hours=1))
    minutes, seconds = divmod(rest.seconds, 60)
    return f"{'-' if duration < timedelta(0) else ''}{hours}:{minutes:02}:{seconds:02}.{rest.microseconds:06}"


class MomentLoader(Loader):
    """Loads a timestamptz. A moment outside FIRST_MOMENT to LAST_MOMENT becomes the nearest of these two."""

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        loader = psycopg.adapters.get_loader(oid, Format.TEXT)
        assert loader is not None  # noqa: S101  psycopg has one for each of its types
        self._load = loader(oid, context).load

    def load(self, data: Buffer) -> datetime:
        """Return the moment. For a moment outside the bounds, return the nearest bound."""
        try:
            moment: datetime = self._load(data)
        except psycopg.DataError:
            return FIRST_MOMENT if _is_low(bytes(data)) else LAST_MOMENT
        # Near a bound a moment can be in range in the session's time zone and out of range in UTC.
        if bytes(data[:10]) in _FIRST_AND_LAST_DAY:
            return max(FIRST_MOMENT, min(moment, LAST_MOMENT))
        return moment


class DurationLoader(IntervalLoader):
    """Loads an interval. An interval beyond a timedelta becomes MAX_TIMEDELTA or its negative.

    The base class is psycopg's loader in Python, because the loader in C computes with 32 bits and wraps around.
    """

    def load(self, data: Buffer) -> timedelta:
        """Return the duration. For a duration outside the bounds, return the nearest bound."""
        text = bytes(data)
        try:
            if not text.endswith(b"infinity"):
                return super().load(data)
        except psycopg.DataError:
            pass
        return -MAX_TIMEDELTA if _is_low(text) else MAX_TIMEDELTA


def _is_low(text: bytes) -> bool:
    # Below the range: -infinity, a year before Christ, the year 1.
    return text.startswith((b"-", b"0")) or text.endswith(b"BC")


_LOADERS = (("json", JsonLoader), ("jsonb", JsonLoader), ("timestamptz", MomentLoader), ("interval", DurationLoader))


def register_loaders(cursor: AdaptContext) -> None:
    """Make a cursor load JSON, timestamps and intervals with the loaders of this module.

    Call it before `execute`. Other cursors of the connection are not affected. `cursor` may be asynchronous.
    """
    for name, loader in _LOADERS:
        cursor.adapters.register_loader(postgres.types[name].oid, loader)


# Arguments of calls. A size, or the end of a range of sequences, may exceed each integer of SQL: no table has more rows
# than the greatest int, and no sequence is above the greatest bigint.

_MAX_INT4, _MAX_INT8 = 2**31 - 1, 2**63 - 1


def _int4(value: Any) -> int:
    return max(-_MAX_INT4, min(to_integer(value), _MAX_INT4))


def _int8(value: Any) -> int:
    return max(-_MAX_INT8, min(to_integer(value), _MAX_INT8))


def _int8s(values: Iterable[Any]) -> list[int]:
    numbers = list(values)
    # Nearly always all are plain integers of this range, which a few calls for all of them tell.
    if set(map(type, numbers)) == {int} and min(numbers) >= -_MAX_INT8 and max(numbers) <= _MAX_INT8:
        return numbers
    return [_int8(number) for number in numbers]


_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "int": _int4,
    "bigint": _int8,
    "bigint[]": _int8s,
    "interval": lambda value: interval_text(to_timedelta(value)),
}
_PLACEHOLDER = re.compile(r"%[sb](?:::(\w+(?:\[\])?))?")


@cache
def _conversions(call: str) -> list[tuple[int, Callable[[Any], Any]]]:
    kinds = [found[1] for found in _PLACEHOLDER.finditer(call)]
    return [(place, _CONVERTERS[kind]) for place, kind in enumerate(kinds) if kind in _CONVERTERS]


def sql_arguments(call: str, arguments: Sequence[object]) -> Sequence[object]:
    """Convert the arguments of a call whose placeholders have the types of integers and durations, as `%s::interval`.

    :raises InvalidArgument: for an argument that is not of its type.
    """
    converted = list(arguments)
    for place, convert in _conversions(call):
        if converted[place] is not None:
            converted[place] = convert(converted[place])
    return converted


# Rows


def state_number(state: State | str | None) -> int | None:
    """Return the stored number of a state or of a state's name in any case. Return None for None."""
    return None if state is None else int(State.of(state))


def model_row(model: type[T], **converters: Callable[[Any], Any]) -> BaseRowFactory[T]:
    """Create a row factory that makes an object of a dataclass of each row, by the names of the columns.

    This is psycopg's `class_row`, with conversions: a number becomes a State if the field is one, and `converters` are
    called with the values of further fields that are not null.
    """
    kinds = {each.name: each.type for each in fields(model)}  # type: ignore[arg-type]
    functions = {**{name: State for name, kind in kinds.items() if kind in (State, State | None)}, **converters}

    def factory(cursor: Any) -> RowMaker[T]:
        names = [column.name for column in cursor.description]
        order = [names.index(name) for name in kinds]  # ValueError for a column that is missing
        converted = [(place, functions[name]) for place, name in enumerate(kinds) if name in functions]

        def make(values: Sequence[Any]) -> T:
            row = [values[place] for place in order]
            for place, function in converted:
                if row[place] is not None:
                    row[place] = function(row[place])
            return model(*row)

        return make

    return factory


def task_row(topic: str) -> BaseRowFactory[Task]:
    """Create a row factory for (sequence, identifier, payload, reference, attempt, redelivered) in a topic.

    The factory reads columns by position: a poll of 1,000 tasks makes 1,000 tasks, and names would double the cost of
    each.
    """

    def factory(_: object) -> RowMaker[Task]:
        return lambda row: Task(row[0], topic, row[1], row[2], row[3], row[4], row[5])

    return factory


def polled_row(topic: str, polled: Polled) -> BaseRowFactory[Task]:
    """Create a row factory for the fence of the poll, which it stores in `polled`, and the columns of `task_row`."""

    def make(row: Sequence[Any]) -> Task:
        polled.fence = row[0]
        return Task(row[1], topic, row[2], row[3], row[4], row[5], row[6])

    return lambda _: make
