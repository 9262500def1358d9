"""What JSON has to be for every client to read it, and decoding of what comes from the database.

A value that Python cannot decode harms no other value.
"""

import json
import math
import re
from itertools import accumulate
from typing import Any

from psycopg import postgres
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader

from airflow_provider_taskq.queue.models import Json, UnreadablePayload

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

    None if nothing does. The database refuses the same (taskq.json_defect), and exponents that overflow, which Python's
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
