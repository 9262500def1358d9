"""Durations as text: `90s` and `1h30m`, seconds as a plain number, and ISO 8601 as `PT5M`."""

import re
from datetime import timedelta

from airflow_provider_taskq.queue.errors import InvalidArgument

LONGEST_DURATION = timedelta(days=365_000)
_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "min": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.ASCII)
_ISO = re.compile(r"P[YMWDTHS]*\d[\dYMWDTHS.,]*", re.ASCII | re.IGNORECASE)
# pendulum computes the parts of an ISO 8601 duration with 32 bits and wraps around without an error.
_TOO_MANY_DIGITS = re.compile(r"(?<![\d.,])\d{10}")


def parse_duration(text: str, longest: timedelta = LONGEST_DURATION) -> timedelta:
    """Parse a duration.

    :param text: parts with the units w, d, h, m (or min), s, ms, as in `90s`, `5m`, `1h30m`; a number of seconds, as in
        `300`; or an ISO 8601 duration, as in `PT5M`, `P1DT2H`. ISO 8601 needs pendulum.
    :param longest: the longest duration that is accepted.
    :raises InvalidArgument: for any other text, for years and months (they have no fixed length), and for a duration
        that is longer than `longest`.
    """
    total = _parse_iso(text) if text[:1] in ("P", "p") else _parse_parts(text)
    if total > longest:
        raise InvalidArgument(f"duration {text!r:.50} is too long: at most {longest.days} days are possible")
    return total


def _parse_parts(text: str) -> timedelta:
    total, position = timedelta(0), 0
    while position < len(text):
        part = _PART.match(text, position)
        unit = _UNITS.get(part[2] or "s") if part else None
        if part is None or unit is None or (not part[2] and part[0] != text):
            raise _invalid(text)
        try:
            total += float(part[1]) * unit
        except OverflowError:
            return timedelta.max
        position = part.end()
    if not text:
        raise _invalid(text)
    return total


def _parse_iso(text: str) -> timedelta:
    try:
        import pendulum  # not at the top: Spark executors have psycopg only
    except ModuleNotFoundError:
        raise InvalidArgument(
            f"invalid duration {text!r:.50}: ISO 8601 needs pendulum, which is not installed here; write 5m or 90s"
        ) from None
    if not _ISO.fullmatch(text):
        raise _invalid(text)
    if _TOO_MANY_DIGITS.search(text):
        return timedelta.max
    try:
        parsed = pendulum.parse(text.upper())
    except OverflowError:
        return timedelta.max
    except ValueError:
        raise _invalid(text) from None
    if not isinstance(parsed, pendulum.Duration):
        raise _invalid(text)
    if parsed.years or parsed.months:
        raise InvalidArgument(f"invalid duration {text!r}: years and months have no fixed length; use days, as in P30D")
    return parsed.as_timedelta()


def _invalid(text: str) -> InvalidArgument:
    return InvalidArgument(f"invalid duration {text!r:.50}: expected for example 90s, 5m, PT5M")
