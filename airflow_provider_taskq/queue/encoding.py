"""Between Python values and what crosses the wire: intervals, JSON texts, rows."""

import json
import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any

import psycopg
from psycopg import postgres
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format
from psycopg.types.datetime import IntervalLoader

from airflow_provider_taskq.queue.models import Json, Owner, State, Task, TaskInfo, UnreadablePayload

MOST = timedelta(days=100_000_000)

_COMPACT = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def interval_text(duration: timedelta | None) -> str | None:
    """A duration for PostgreSQL, in microseconds: a "day" there would be 23 or 25 hours twice a year.

    A duration that PostgreSQL cannot add to a moment is cut: the functions refuse or clamp what is far shorter.
    """
    if duration is None:
        return None
    return f"{max(-MOST, min(duration, MOST)) // timedelta(microseconds=1)} microseconds"


def json_text(value: Json) -> str | None:
    """A value as compact JSON, None as none; ValueError with the reason for what not every client can read back."""
    if value is None:
        return None
    try:
        text = _COMPACT.encode(value)
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("holds a lone surrogate") from None
    except RecursionError:
        raise ValueError(f"is nested deeper than {MAX_DEPTH} levels, or than the stack has room for") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    if defect := json_defect(text):
        raise ValueError(defect)
    return text


def state_number(state: State | str | None) -> int | None:
    """A state, or its name in any case, as the number that is stored; None for None."""
    return None if state is None else int(State.of(state))


def task_of(topic: str, row: Sequence[Any]) -> Task:
    """A task from (sequence, identifier, payload, reference, attempt, redelivered)."""
    return Task(row[0], topic, *row[1:6])


def task_info_of(row: Sequence[Any]) -> TaskInfo:
    """A task with everything about it from a row of the view taskq.task_info."""
    values = list(row[:20])
    values[7] = State(values[7])
    values[8] = None if values[8] is None else State(values[8])
    return TaskInfo(*values)


def owner_of(row: Sequence[Any]) -> Owner:
    """An owner from (name, fence, lease, lease_until, resumed)."""
    return Owner(*row)


MAX_DEPTH = 100
_MAX_DIGITS = 308  # an integer of more digits may exceed a double; one of more digits still may exceed Python's limit
_DIGITS = str.maketrans("123456789", "000000000")
_LONG_INTEGER = "0" * (_MAX_DIGITS + 1)
_NO_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[^][{}"]+')

# Made before they are needed: near the end of the stack there is no room for a constructor's frames.
_TOO_DEEP = UnreadablePayload("unreadable JSON: it is nested deeper than Python can decode")
_OUT_OF_RANGE = UnreadablePayload("unreadable JSON: it holds a number outside the range of a double")
_NOT_JSON = UnreadablePayload("unreadable JSON: Python finds no valid JSON in it")


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
    raise ValueError  # NaN, Infinity and -Infinity, which JSON lacks


# Integers are checked only if a value has digits enough: a hook costs more than all the rest of a small payload.
_DECODER = json.JSONDecoder(parse_float=_finite_float, parse_constant=_refuse_constant)
_EXACT_DECODER = json.JSONDecoder(parse_float=_finite_float, parse_int=_finite_integer, parse_constant=_refuse_constant)


def decode_json(text: str) -> Json:
    """The value of a JSON text, or an UnreadablePayload with the reason why it has none in Python; never raises.

    Unreadable are nesting beyond what is left of the stack, numbers outside the range of a double, whether they are
    written with an exponent or as an integer, and what is not JSON.
    """
    try:
        value: Json = (_EXACT_DECODER if _has_long_integer(text) else _DECODER).decode(text)
    except RecursionError:
        return _TOO_DEEP
    except _OutOfRange:
        return _OUT_OF_RANGE
    except ValueError:
        return _NOT_JSON
    return value


def _has_long_integer(text: str) -> bool:
    """Whether there may be an integer outside the range of a double; digits in a string or a fraction look the same."""
    return len(text) > _MAX_DIGITS and _LONG_INTEGER in text.translate(_DIGITS)


def json_defect(text: str) -> str | None:
    """What keeps a JSON text that Python encoded from being read by every client, in words that follow "its payload".

    None if nothing does. The database refuses the same (taskq_internal.json_defect), and exponents that
        overflow, which Python's
    encoder does not write.
    """
    if len(text) > 2 * MAX_DEPTH and text.count("[") + text.count("{") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
        return f"is nested deeper than {MAX_DEPTH} levels"
    if _has_long_integer(text) and decode_json(text) is _OUT_OF_RANGE:
        return "holds a number outside the range of a double, which ends at 1.7976931348623157e308"
    return None


def _depth(text: str) -> int:
    """How many levels of lists and objects a JSON text has."""
    brackets = _NO_BRACKETS.sub("", text)
    return max(accumulate(1 if bracket in "[{" else -1 for bracket in brackets), default=0)


class JsonLoader(Loader):
    """Loads json and jsonb by `decode_json`, in the encoding of the connection."""

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        encoding = self.connection.info.encoding if self.connection else "utf-8"
        self._encoding = "utf-8" if encoding == "ascii" else encoding  # SQL_ASCII sends what was stored

    def load(self, data: Buffer) -> Any:
        """The value, or an UnreadablePayload."""
        try:
            return decode_json(str(data, self._encoding))
        except RecursionError:  # not even decode_json could be called
            return _TOO_DEEP
        except ValueError:
            return _NOT_JSON


_JSON = postgres.types["json"].oid
_JSONB = postgres.types["jsonb"].oid


def decode_tolerantly(cursor: AdaptContext) -> None:
    """Makes a cursor decode JSON by `JsonLoader`; its connection, and other cursors, go on as before.

    Call it before `execute`. `cursor` may also be of an asynchronous connection.
    """
    adapters = cursor.adapters
    adapters.register_loader(_JSON, JsonLoader)
    adapters.register_loader(_JSONB, JsonLoader)


# As in taskq_internal.clamp_moment (sql/internal/validation.sql).
FIRST_MOMENT = datetime(1, 1, 1, tzinfo=UTC)
LAST_MOMENT = datetime(9999, 12, 31, tzinfo=UTC)
MAX_TIMEDELTA = timedelta(days=999_999_999)
MAX_STORED_DURATION = timedelta(days=3650)  # as in taskq_internal.is_duration

_LARGEST = 2**31 - 1
_TIMESTAMPTZ = psycopg.adapters.types["timestamptz"].oid
_INTERVAL = psycopg.adapters.types["interval"].oid
_EDGES = {b"0001-01-01", b"9999-12-31"}


def to_int4(size: int) -> int:
    """A number of rows or tasks for an SQL int: one that is too large for it means as many as there are."""
    return max(-_LARGEST, min(size, _LARGEST))


class MomentLoader(Loader):
    """Loads a timestamptz; one before FIRST_MOMENT or after LAST_MOMENT as that."""

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        loader = psycopg.adapters.get_loader(_TIMESTAMPTZ, Format.TEXT)
        assert loader is not None  # noqa: S101  psycopg has one for each of its types
        self._load = loader(oid, context).load

    def load(self, data: Buffer) -> datetime:
        """The moment, or the bound on its side."""
        try:
            moment: datetime = self._load(data)
        except psycopg.DataError:
            return FIRST_MOMENT if _is_low(bytes(data)) else LAST_MOMENT
        if bytes(data[:10]) in _EDGES:  # it can be a year off the range in UTC, and on it in the session's time zone
            return max(FIRST_MOMENT, min(moment, LAST_MOMENT))
        return moment


class DurationLoader(IntervalLoader):
    """Loads an interval; one beyond a timedelta as LONGEST, or its negative.

    By the loader that is written in Python: the other one computes with 32 bits, and wraps around.
    """

    def load(self, data: Buffer) -> timedelta:
        """The duration, or the bound on its side."""
        text = bytes(data)
        try:
            if not text.endswith(b"infinity"):
                return super().load(data)
        except psycopg.DataError:
            pass
        return -MAX_TIMEDELTA if _is_low(text) else MAX_TIMEDELTA


def load_bounded(cursor: psycopg.Cursor[Any]) -> None:
    """Makes a cursor read moments and durations that Python cannot represent as the nearest bound."""
    cursor.adapters.register_loader(_TIMESTAMPTZ, MomentLoader)
    cursor.adapters.register_loader(_INTERVAL, DurationLoader)


def _is_low(text: bytes) -> bool:
    """Whether a value that is out of range lies below it: -infinity, a year before Christ, the year 1."""
    return text.startswith((b"-", b"0")) or text.endswith(b"BC")
