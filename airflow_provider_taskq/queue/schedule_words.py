"""The schedule of recurring tasks in words, told from their nominal times: the queue stores no other trace of it."""

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_DAY = timedelta(days=1)
_UNITS = ((timedelta(days=7), "week"), (_DAY, "day"), (timedelta(hours=1), "hour"), (timedelta(minutes=1), "minute"))
_MOST_TIMES = 6  # times of day that a sentence names


def schedule_in_words(moments: Iterable[datetime]) -> str:
    """A schedule, in UTC: "every 15 minutes", "every day at 06:00", "Monday to Friday at 09:00 and 17:30".

    It is as good as the times that are given: from a single one no schedule can be told.
    """
    times = sorted({moment.astimezone(UTC) for moment in moments})
    if len(times) < 2:
        return "one time is known"
    gaps = {later - earlier for earlier, later in pairwise(times)}
    if min(gaps) >= 28 * _DAY and len({(moment.day, _clock(moment)) for moment in times}) == 1:
        return f"day {times[0].day} of the month at {_clock(times[0])}"
    if len(gaps) == 1:
        return _regular(gaps.pop(), times[0])
    return _daily(times) or f"irregular, {len(times)} times in {_length(times[-1] - times[0])}"


def _regular(gap: timedelta, example: datetime) -> str:
    """Times that are equally far apart."""
    if gap == _DAY:
        return f"every day at {_clock(example)}"
    if gap == 7 * _DAY:
        return f"every {_DAYS[example.weekday()]} at {_clock(example)}"
    if gap < _DAY:
        return f"every {_length(gap)}".replace("every 1 ", "every ")
    return f"every {_length(gap)} at {_clock(example)}"


def _daily(times: Sequence[datetime]) -> str | None:
    """The same times of day on days of the week, the first and the last day perhaps in part; None for anything else."""
    of_day: dict[date, set[str]] = {}
    for moment in times:
        of_day.setdefault(moment.date(), set()).add(_clock(moment))
    days = sorted(of_day)
    usual = max(of_day.values(), key=len)
    whole = days[1:-1] if len(days) > 2 else []
    if (
        len(usual) > _MOST_TIMES
        or any(of_day[day] != usual for day in whole)
        or not set().union(*of_day.values()) <= usual
    ):
        return None
    if len(days) < 2:
        return None
    span = {days[0] + _DAY * n for n in range((days[-1] - days[0]).days + 1)}
    on = {day.weekday() for day in days}
    if {day for day in span if day.weekday() in on} != set(days):
        return None
    every = len(on) == min(7, len(span))
    return f"{'every day' if every else _weekdays(sorted(on))} at {_listed(sorted(usual))}"


def _weekdays(on: Sequence[int]) -> str:
    if len(on) > 2 and on[-1] - on[0] == len(on) - 1:
        return f"{_DAYS[on[0]]} to {_DAYS[on[-1]]}"
    return _listed([_DAYS[day] for day in on])


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _clock(moment: datetime) -> str:
    return f"{moment:%H:%M:%S}" if moment.second else f"{moment:%H:%M}"


def _length(length: timedelta) -> str:
    """A duration in its largest unit that divides it."""
    for unit, word in _UNITS:
        if length >= unit and not length % unit:
            number = length // unit
            return f"{number} {word}{'' if number == 1 else 's'}"
    return f"{length.total_seconds():g} seconds"
