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

# As in taskq.clamp_moment (sql/functions/bounds.sql).
FIRST_MOMENT = datetime(1, 1, 1, tzinfo=UTC)
LAST_MOMENT = datetime(9999, 12, 31, tzinfo=UTC)
LONGEST = timedelta(days=999_999_999)

_LARGEST = 2**31 - 1
_TIMESTAMPTZ = psycopg.adapters.types["timestamptz"].oid
_INTERVAL = psycopg.adapters.types["interval"].oid


def int_size(size: int) -> int:
    """A number of rows or tasks for an SQL int: one that is too large for it means as many as there are."""
    return max(-_LARGEST, min(size, _LARGEST))


class _BoundedLoader(Loader):
    """Loads with psycopg's own loader, and what that one cannot represent as the bound on its side."""

    type_oid: int
    least: object
    greatest: object

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        loader = psycopg.adapters.get_loader(self.type_oid, Format.TEXT)
        assert loader is not None  # noqa: S101  psycopg has one for each of its types
        self._load = loader(oid, context).load

    def load(self, data: Buffer) -> object:
        """The value, or a bound."""
        try:
            return self._load(data)
        except (psycopg.DataError, OverflowError):
            return self.least if _is_low(bytes(data)) else self.greatest


class MomentLoader(_BoundedLoader):
    """A timestamptz: one outside of the years 1 to 9999 as FIRST_MOMENT or LAST_MOMENT."""

    type_oid = _TIMESTAMPTZ
    least, greatest = FIRST_MOMENT, LAST_MOMENT


class DurationLoader(_BoundedLoader):
    """An interval: one beyond a timedelta as LONGEST, or its negative."""

    type_oid = _INTERVAL
    least, greatest = -LONGEST, LONGEST


def load_bounded(cursor: psycopg.Cursor[Any]) -> None:
    """Makes a cursor read moments and durations that Python cannot represent as the nearest bound."""
    cursor.adapters.register_loader(_TIMESTAMPTZ, MomentLoader)
    cursor.adapters.register_loader(_INTERVAL, DurationLoader)


def _is_low(text: bytes) -> bool:
    """Whether a value that is out of range lies below it: -infinity, a year before Christ, the year 1."""
    return text.startswith((b"-", b"0")) or text.endswith(b"BC")
