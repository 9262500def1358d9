"""Moments as people write them, durations and ages as people read them."""

from datetime import UTC, datetime, timedelta

import pendulum

from airflow_provider_taskq.queue.durations import parse_duration
from airflow_provider_taskq.queue.encoding import FIRST_MOMENT, LAST_MOMENT


def parse_moment(text: str) -> datetime | timedelta:
    """Parse a moment in ISO 8601, or a duration before now.

    Without an offset the moment is in the time zone of this machine. `now`, a time of today (`09:30`), a week
    (`2026-W47`) and a day of a year (`2026-325`) are moments too.
    """
    if text.isdigit() and len(text) < len("20261121"):  # a number of seconds, not a year
        return parse_duration(text)
    if "/" in text or text[:1] in ("P", "p"):  # an ISO 8601 interval or duration
        return _ago(text)
    try:
        found = pendulum.parse(text, tz="local")
    except (ValueError, OverflowError, TypeError):  # TypeError: pendulum 3.3 for a malformed time, such as `6:`
        found = None
    if not isinstance(found, pendulum.DateTime):
        return _ago(text)
    try:
        moment = datetime.fromisoformat(found.isoformat()).astimezone(UTC)
    except OverflowError:
        moment = None
    if moment is None or not FIRST_MOMENT <= moment <= LAST_MOMENT:
        raise ValueError(f"{text!r} is outside the years 1 to 9999")
    return moment


def _ago(text: str) -> timedelta:
    """Parse a duration. The error for other texts also says how to write a moment."""
    try:
        return parse_duration(text)
    except ValueError as error:
        if "invalid" not in str(error):  # a duration that is too long, for example
            raise
        raise ValueError(
            f"invalid moment {text!r:.50}: expected for example 2026-11-21T09:30, or 2h for two hours ago"
        ) from None


def moment_at(given: datetime | timedelta | None, now: datetime) -> datetime | None:
    """Return a moment. A duration counts back from `now`."""
    return now - given if isinstance(given, timedelta) else given


def format_duration(duration: timedelta | None) -> str:
    """Format a duration as in the queue's messages: 45 s, 12 min, 3 h 5 min, 4 days."""
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


def format_short(duration: timedelta) -> str:
    """Format a duration with two digits below ten seconds: 40 ms, 1.2 s."""
    thousandths = max(0, round(duration / timedelta(milliseconds=1)))
    if thousandths < 1000:
        return f"{thousandths} ms"
    if thousandths < 9950:
        return f"{thousandths / 1000:.1f}".removesuffix(".0") + " s"
    return format_duration(timedelta(seconds=round(thousandths / 1000)))


def format_attempt_times(waited: timedelta | None, ran: timedelta | None, verb: str = "ran") -> str:
    """Format the queue time and the run time of an attempt, such as `waited 3 s · ran 1.2 s`.

    The text is empty if there is no attempt.
    """
    words = (
        None if waited is None else f"waited {format_short(waited)}",
        None if ran is None else f"{verb} {format_short(ran)}",
    )
    return " · ".join(filter(None, words))


_UNITS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}  # in milliseconds


def format_exact(duration: timedelta) -> str:
    """Format a duration to the millisecond, as `parse_duration` reads it: 1h30m."""
    rest, pieces = round(duration / timedelta(milliseconds=1)), []
    for unit, length in _UNITS.items():
        count, rest = divmod(rest, length)
        if count:
            pieces.append(f"{count}{unit}")
    return "".join(pieces) or "0s"


def format_age(moment: datetime | None, now: datetime) -> str:
    """Format the time from a moment to now: 5 minutes ago, in 3 hours."""
    if moment is None:
        return ""
    return pendulum.format_diff(pendulum.instance(moment).diff(pendulum.instance(now)))
