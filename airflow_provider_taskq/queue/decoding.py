"""Decoding of JSON that comes from the database: a value that Python cannot decode harms no other value."""

import json
import math
from typing import Any

from psycopg import postgres
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader

from airflow_provider_taskq.queue.model import Json, UnreadablePayload

_MAX_DIGITS = 308  # an integer of more digits may exceed a double; one of more digits still may exceed Python's limit
_DIGITS = str.maketrans("123456789", "000000000")
_LONG_INTEGER = "0" * (_MAX_DIGITS + 1)

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
    raise _OutOfRange  # NaN, Infinity and -Infinity, which JSON lacks


# Integers are checked only if a value has digits enough: a hook costs more than all the rest of a small payload.
_DECODER = json.JSONDecoder(parse_float=_finite_float, parse_constant=_refuse_constant)
_EXACT_DECODER = json.JSONDecoder(parse_float=_finite_float, parse_int=_finite_integer, parse_constant=_refuse_constant)


def decode_json(text: str) -> Json:
    """The value of a JSON text, or an UnreadablePayload with the reason why it has none in Python; never raises.

    Unreadable are nesting beyond what is left of the stack, numbers outside the range of a double, whether they are
    written with an exponent or as an integer, and what is not JSON.
    """
    try:
        long = len(text) > _MAX_DIGITS and _LONG_INTEGER in text.translate(_DIGITS)
        value: Json = (_EXACT_DECODER if long else _DECODER).decode(text)
    except RecursionError:
        return _TOO_DEEP
    except _OutOfRange:
        return _OUT_OF_RANGE
    except ValueError:
        return _NOT_JSON
    return value


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
