"""Durations and moments, as people write and read them."""

import re
from datetime import UTC, datetime, timedelta

_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "min": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
TEN_YEARS, THOUSAND_YEARS = timedelta(days=3650), timedelta(days=365_000)
_FIRST, _LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)  # as in queue/bounds.py
_PIECE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)\s*")


def duration_of(text: str, most: timedelta = THOUSAND_YEARS) -> timedelta:
    """The duration that `90s`, `5m`, `1h30m`, `2d` or a plain number of seconds says; ValueError where none.

    ValueError for one longer than `most`, too.
    """
    total, place = timedelta(0), 0
    while place < len(text):
        piece = _PIECE.match(text, place)
        unit = _UNITS.get(piece[2] or "s") if piece else None
        if piece is None or unit is None or (not piece[2] and piece[0] != text):
            raise ValueError(f"{text!r} is no duration: write 90s, 5m, 1h30m, 2d or 1w")
        try:
            total += float(piece[1]) * unit
        except OverflowError:
            total = timedelta.max
        if total > most:
            raise ValueError(f"{text!r:.50} is longer than {most.days} days, the longest duration here")
        place = piece.end()
    if not text:
        raise ValueError("a duration is missing: write 90s, 5m, 1h30m, 2d or 1w")
    return total


def moment_of(text: str) -> datetime | timedelta:
    """A moment in ISO 8601 (of this machine's time zone, unless it says one), or how long ago, as a duration."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        try:
            return duration_of(text)
        except ValueError as error:
            if "longer" in str(error):
                raise
            raise ValueError(f"{text!r} is no moment: write 2026-11-21T09:30, or 2h for two hours ago") from None
    try:
        moment = found.astimezone(UTC)
    except OverflowError:
        moment = None
    if moment is None or not _FIRST <= moment <= _LAST:
        raise ValueError(f"{text!r} lies outside of the years 1 to 9999")
    return moment


def moment_at(given: datetime | timedelta | None, now: datetime) -> datetime | None:
    """The moment itself, where it was given as how long before `now` it was."""
    return now - given if isinstance(given, timedelta) else given


def in_words(duration: timedelta | None) -> str:
    """A duration as the queue's own sentences say it: 45 s, 12 min, 3 h 5 min, 4 days."""
    if duration is None:
        return ""
    seconds = max(0, int(duration.total_seconds()))
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 7200:
        return f"{seconds // 60} min"
    if seconds < 172_800:
        rest = seconds % 3600 // 60
        return f"{seconds // 3600} h" + (f" {rest} min" if rest else "")
    return f"{seconds // 86_400} days"


def exactly(duration: timedelta) -> str:
    """A duration to the millisecond, as `duration_of` reads it: 1h30m."""
    rest, pieces = round(duration / timedelta(milliseconds=1)), []
    for unit, length in (
        ("w", 604_800_000),
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1000),
        ("ms", 1),
    ):
        count, rest = divmod(rest, length)
        if count:
            pieces.append(f"{count}{unit}")
    return "".join(pieces) or "0s"


def ago(moment: datetime | None, now: datetime) -> str:
    """How long ago a moment was, or how long it is to it."""
    if moment is None:
        return ""
    return f"in {in_words(moment - now)}" if moment > now else f"{in_words(now - moment)} ago"
