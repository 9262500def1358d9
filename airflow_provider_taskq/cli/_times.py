"""Moments as people write them, durations and ages as people read them."""

from datetime import UTC, datetime, timedelta

import pendulum

from airflow_provider_taskq.queue import InvalidArgument
from airflow_provider_taskq.queue.durations import parse_duration
from airflow_provider_taskq.queue.encoding import FIRST_MOMENT, LAST_MOMENT


def parse_moment(text: str) -> datetime | timedelta:
    """Parse a moment in ISO 8601, or a duration before now.

    Without an offset the moment is in the time zone of this machine. `now`, a time of today (`09:30`), a week
    (`2026-W47`) and a day of a year (`2026-325`) are moments too.
    """
    if not text.isdigit() or len(text) != len("20261121"):  # other digits are seconds
        try:
            return parse_duration(text)
        except ValueError as error:
            if "invalid" not in str(error):  # a duration that is too long, for example
                raise
    try:
        found = None if "/" in text else pendulum.parse(text, tz="local")  # none of an interval
    except (ValueError, OverflowError, TypeError):  # TypeError: pendulum 3.3 for a malformed time, such as `6:`
        found = None
    if not isinstance(found, pendulum.DateTime):
        raise InvalidArgument(
            f"invalid moment {text!r:.50}: expected for example 2026-11-21T09:30, or 2h for two hours ago"
        )
    try:
        moment = datetime.fromisoformat(found.isoformat()).astimezone(UTC)
    except OverflowError:
        moment = None
    if moment is None or not FIRST_MOMENT <= moment <= LAST_MOMENT:
        raise ValueError(f"{text!r} is outside the years 1 to 9999")
    return moment


def moment_at(given: datetime | timedelta | None, now: datetime) -> datetime | None:
    """Return a moment. A duration counts back from `now`."""
    return now - given if isinstance(given, timedelta) else given


def format_duration(duration: timedelta | None) -> str:
    """Format a duration as in the queue's messages, with two digits below ten seconds: 40 ms, 1.2 s, 3 h 5 min."""
    if duration is None:
        return ""
    thousandths = max(0, round(duration / timedelta(milliseconds=1)))
    if 0 < thousandths < 1000:
        return f"{thousandths} ms"
    if thousandths < 9950:
        return f"{thousandths / 1000:.1f}".removesuffix(".0") + " s"
    minutes, seconds = divmod(round(thousandths / 1000), 60)
    if minutes < 2:
        return f"{60 * minutes + seconds} s"
    hours, rest = divmod(minutes, 60)
    if hours < 2:
        return f"{minutes} min"
    return f"{hours // 24} days" if hours >= 48 else f"{hours} h {rest} min" if rest else f"{hours} h"


def format_attempt_times(waited: timedelta | None, ran: timedelta | None, verb: str = "ran") -> str:
    """Format the queue time and the run time of an attempt, such as `waited 3 s · ran 1.2 s`."""
    times = ("waited", waited), (verb, ran)
    return " · ".join(f"{word} {format_duration(time)}" for word, time in times if time is not None)


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
