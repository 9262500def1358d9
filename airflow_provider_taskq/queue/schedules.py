"""Schedules: the times of ticks, and the hash of a configuration.

Nothing here uses the database: `TaskQueue.install_ticks` makes tasks of these times.

A time that a change of the clock skips gives no tick. An hour that comes twice gives its ticks the first time only,
also for "every half hour", which then pauses for an hour. If each real half hour counts, use `ticks_every`, or a cron
expression in UTC.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from airflow_provider_taskq.queue.arguments import DurationLike, to_integer, to_timedelta
from airflow_provider_taskq.queue.errors import InvalidArgument
from airflow_provider_taskq.queue.models import Json

ONE_DAY = timedelta(days=1)
ONE_MINUTE = timedelta(minutes=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HASH_LENGTH = 32  # hexadecimal digits: 128 bits
MAX_TICKS = 100_000  # of one call: those of eleven hourly years, which take some ten seconds to install


def ticks_every(period: DurationLike, now: datetime, ahead: int = 1) -> list[datetime]:
    """Return the next `ahead` multiples of a period since the epoch, in UTC, strictly after `now`.

    :raises InvalidArgument: for a period or an `ahead` that is not positive, more than 100,000 ticks, and times outside
        the years 1 to 9999.
    """
    length = to_timedelta(period, "period", timedelta.resolution)
    _check_number(to_integer(ahead, "number of ticks", 1))
    with _within_the_calendar():
        past = (_moment(now) - EPOCH) // length
        return [EPOCH + length * (past + nth) for nth in range(1, ahead + 1)]


def ticks_daily(
    hours: Sequence[time], zone: str | ZoneInfo, now: datetime, ahead: DurationLike = ONE_DAY
) -> list[datetime]:
    """Return times of day in a time zone, strictly after `now` and at most `ahead` after it; at least the next one.

    The function needs pendulum, as Airflow does.

    :param zone: a name such as `Europe/Berlin`, or a zone with a name: a ZoneInfo, or that of `pendulum.timezone`.

    :raises InvalidArgument: for no hours, hours with a time zone, an unknown zone, more than 100,000 ticks, and times
        outside the years 1 to 9999.
    """
    times = _ascending(set(hours))
    with _within_the_calendar():
        local, begin = _zone(zone), _moment(now)
        first = begin.astimezone(local).date()
        days = (first + ONE_DAY * nth for nth in range((date.max - first).days))
        return _within((datetime.combine(day, hour) for day in days for hour in times), local, begin, ahead)


def _hashed_hours(hours: Iterable[time]) -> list[Json]:
    """Return the times of day of `ticks_daily` for `config_hash`.

    :raises InvalidArgument: for no hours, and hours with a time zone.
    """
    return [hour.isoformat() for hour in _ascending(hours)]


def _ascending(hours: Iterable[time]) -> list[time]:
    given = list(hours)
    if not given or any(hour.tzinfo is not None for hour in given):
        raise InvalidArgument("daily ticks need at least one time of day, and a time zone as an argument of its own")
    return sorted(given)


def ticks_cron(expression: str, zone: str | ZoneInfo, now: datetime, ahead: DurationLike = ONE_DAY) -> list[datetime]:
    """Return the times of a cron expression in a time zone, within the bounds of `ticks_daily`.

    An expression has five fields (minute, hour, day of month, month, day of week), or is one of @hourly, @daily,
    @weekly, @monthly and @yearly. The function needs croniter and pendulum, as Airflow does.

    :raises InvalidArgument: for an invalid or random expression, an unknown zone, more than 100,000 ticks, and times
        outside the years 1 to 9999.
    """
    with _within_the_calendar():
        local, begin = _zone(zone), _moment(now)
        wall = begin.astimezone(local).replace(tzinfo=None, second=0, microsecond=0) - ONE_MINUTE
        return _within(_cron(expression, wall), local, begin, ahead)


def config_hash(*parts: Json) -> str:
    """Return a hash of a configuration, the same in every process and version: 32 hexadecimal digits.

    Equal parts have the same hash, in any order of keys. 1, 1.0, "1" and True are four configurations.
    """
    _check_json(parts)
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]


class Schedule(NamedTuple):
    """The times of ticks, and what stands for them in a hash: it is the same wherever the schedule is installed.

    For times of your own, give your own `parts`, and change them with the code of `times`.
    """

    parts: tuple[Json, ...]
    times: Callable[[datetime, timedelta], list[datetime]]  # after a moment, within a duration, and at least the next

    @classmethod
    def every(cls, period: DurationLike) -> "Schedule":
        """Return the multiples of a period: see `ticks_every`."""
        length = to_timedelta(period, "period", timedelta.resolution)
        return cls(
            ("every", length.total_seconds()), lambda now, ahead: ticks_every(length, now, max(1, ahead // length))
        )

    @classmethod
    def daily(cls, hours: Sequence[time], zone: str | ZoneInfo) -> "Schedule":
        """Return times of day in a time zone: see `ticks_daily`."""
        name = zone_name(zone)
        return cls(("daily", _hashed_hours(hours), name), lambda now, ahead: ticks_daily(hours, name, now, ahead))

    @classmethod
    def cron(cls, expression: str, zone: str | ZoneInfo) -> "Schedule":
        """Return the times of a cron expression: see `ticks_cron`."""
        return cls(("cron", expression, zone_name(zone)), lambda now, ahead: ticks_cron(expression, zone, now, ahead))

    def hash(self, payload: Json) -> str:
        """Return the hash of the schedule with a payload."""
        return config_hash(*self.parts, payload)


def _check_json(value: object) -> None:
    # Each of these has no unique JSON text: a key that is not text, a NaN, an object of another type.
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise InvalidArgument(f"a configuration is hashed as JSON, and its key {key!r:.50} is not text")
            _check_json(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_json(inner)
    elif not (
        value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and value - value == 0)
    ):
        raise InvalidArgument(f"a configuration is hashed as JSON, and {value!r:.50} is not JSON")


def _cron(expression: str, begin: datetime) -> Iterator[datetime]:
    """Yield the times after `begin` on a clock that never changes."""
    from croniter import CroniterError, croniter

    fields = expression.split()
    if not expression.startswith("@") and len(fields) != 5:
        raise InvalidArgument(f"the cron expression {expression!r} has {len(fields)} fields, not five")
    if any(choice[:1] in ("R", "r") for field in fields for choice in field.split(",")):
        raise InvalidArgument(f"the cron expression {expression!r} is random, so that no two would make the same ticks")
    try:
        times = croniter(expression, begin)
        while True:
            yield times.get_next(datetime)
    except (CroniterError, OverflowError, ValueError) as error:  # ValueError: near the year 9999
        raise InvalidArgument(f"the cron expression {expression!r} gives no times: {error}") from None


def _within(walls: Iterator[datetime], zone: ZoneInfo, now: datetime, ahead: DurationLike) -> list[datetime]:
    """Return the moments of ascending clock times, after `now` and at most `ahead` after it; at least the next one."""
    span = to_timedelta(ahead, "ahead")
    found: list[datetime] = []
    for wall in walls:
        moment = _first_moment(wall, zone)
        if moment is None or moment <= now:
            continue
        if moment - now <= span or not found:
            found.append(moment)
            _check_number(len(found))
        if moment - now > span:
            break
    if not found:
        raise InvalidArgument("there are no ticks before the year 1 or after the year 9999")
    return found


def _check_number(ticks: int) -> None:
    if ticks > MAX_TICKS:
        raise InvalidArgument(f"a schedule makes at most {MAX_TICKS:,} ticks in one call: install fewer ahead")


@contextmanager
def _within_the_calendar() -> Iterator[None]:
    """Raise InvalidArgument for moments before the year 1 or after the year 9999, which Python does not have."""
    try:
        yield
    except OverflowError:
        raise InvalidArgument("there are no ticks before the year 1 or after the year 9999") from None


def _first_moment(wall: datetime, zone: ZoneInfo) -> datetime | None:
    """Return the first moment at which clocks of the zone show this time; None if a change skips it."""
    moment = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    return moment if moment.astimezone(zone).replace(tzinfo=None) == wall else None


def _moment(now: datetime) -> datetime:
    # A time without a zone would be another moment on each machine.
    if now.tzinfo is None:
        raise InvalidArgument("now has no time zone")
    return now.astimezone(UTC)


def zone_name(zone: str | ZoneInfo) -> str:
    """Return the name of a time zone, which is in the hash of a schedule."""
    name: Any = zone.key if isinstance(zone, ZoneInfo) else zone
    if not isinstance(name, str):
        raise InvalidArgument(
            f"unknown time zone {zone!r}: expected a name such as Europe/Berlin, or a zone with a name"
        )
    return name


def _zone(zone: str | ZoneInfo) -> ZoneInfo:
    """Return a time zone, from the data of pendulum if the system has none."""
    name = zone_name(zone)
    import pendulum  # not at the top: Spark executors have psycopg only, and make no ticks

    try:
        return pendulum.timezone(name)
    except (ValueError, OSError):
        raise InvalidArgument(f"unknown time zone {name!r}") from None
