"""Values of PostgreSQL beyond what Python's types hold, and Python's beyond PostgreSQL's, brought into bounds.

The functions of the queue store no moment outside of the years 1 to 9999. A row that a superuser wrote may have one
all the same, or an infinite one. It is read as the nearest bound, so that one bad row never hides the others.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format
from psycopg.types.datetime import IntervalLoader

# As in taskq.clamp_moment (sql/functions/bounds.sql).
FIRST_MOMENT = datetime(1, 1, 1, tzinfo=UTC)
LAST_MOMENT = datetime(9999, 12, 31, tzinfo=UTC)
LONGEST = timedelta(days=999_999_999)
LONGEST_STORED = timedelta(days=3650)  # as in taskq.is_duration

_LARGEST = 2**31 - 1
_TIMESTAMPTZ = psycopg.adapters.types["timestamptz"].oid
_INTERVAL = psycopg.adapters.types["interval"].oid
_EDGES = {b"0001-01-01", b"9999-12-31"}


def int_size(size: int) -> int:
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
        return -LONGEST if _is_low(text) else LONGEST


def load_bounded(cursor: psycopg.Cursor[Any]) -> None:
    """Makes a cursor read moments and durations that Python cannot represent as the nearest bound."""
    cursor.adapters.register_loader(_TIMESTAMPTZ, MomentLoader)
    cursor.adapters.register_loader(_INTERVAL, DurationLoader)


def _is_low(text: bytes) -> bool:
    """Whether a value that is out of range lies below it: -infinity, a year before Christ, the year 1."""
    return text.startswith((b"-", b"0")) or text.endswith(b"BC")
