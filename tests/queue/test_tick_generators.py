"""The due times of ticks: periods, hours of the day and cron expressions, across the time changes of three zones."""

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta, timezone
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

import pendulum
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_taskq.queue import (
    InvalidArgument,
    Json,
    config_hash,
    schedules,
    ticks_cron,
    ticks_daily,
    ticks_every,
)
from airflow_provider_taskq.queue.schedules import Schedule

pytestmark = pytest.mark.promise("An hour that a time change skips gives no tick, and one that occurs twice gives one")

ZONES = ["UTC", "Europe/Oslo", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "America/Sao_Paulo"]
MOMENTS = st.integers(631_152_000, 2_051_222_400).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))  # 1990-2035
HOURS = st.lists(st.times(), min_size=1, max_size=5)
EXPRESSIONS = ["30 2 * * *", "*/30 * * * *", "0 * * * *", "15 1-3 * * 0", "0 9 1 * *", "@daily", "5,35 2 29 2 *"]
WEEK = timedelta(days=7)
HOURS_OF_DAY = [time(18), time(6), time(12, 30), time(6)]


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def clock(moments: list[datetime], zone: str) -> list[str]:
    """The time that the clocks of a zone show at a moment."""
    return [moment.astimezone(ZoneInfo(zone)).strftime("%d %H:%M %z") for moment in moments]


EVERY: dict[str, tuple[list[datetime], str]] = {
    "the boundary of a period": (ticks_every(timedelta(hours=1), utc("2026-11-21T10:37:42.123")), "21T11:00"),
    "several": (ticks_every(timedelta(minutes=15), utc("2026-11-21T10:37"), 3), "21T10:45 21T11:00 21T11:15"),
    "on the boundary": (ticks_every(timedelta(hours=1), utc("2026-11-21T11:00")), "21T12:00"),
    "just before it": (ticks_every(timedelta(hours=1), utc("2026-11-21T10:59:59.999999")), "21T11:00"),
    "on the hour of a day": (ticks_daily([time(11)], "UTC", utc("2026-11-21T11:00")), "22T11:00"),
    "on the time of an expression": (ticks_cron("0 11 * * *", "UTC", utc("2026-11-21T11:00")), "22T11:00"),
    "just before that time": (ticks_cron("0 11 * * *", "UTC", utc("2026-11-21T10:59:59.999999")), "21T11:00"),
    "an hour in Oslo": (ticks_daily([time(8)], "Europe/Oslo", utc("2026-07-01T00:00")), "01T06:00"),
    "an hour in New York": (ticks_daily([time(8)], "America/New_York", utc("2026-07-01T00:00")), "01T12:00"),
    "an hour in Kolkata": (ticks_cron("0 8 * * *", "Asia/Kolkata", utc("2026-07-01T00:00")), "01T02:30"),
    "years apart": (ticks_cron("0 12 29 2 *", "UTC", utc("2026-01-01T00:00")), "29T12:00"),
    "hours of a day": (ticks_daily(HOURS_OF_DAY, "UTC", utc("2026-11-21T07:00")), "21T12:30 21T18:00 22T06:00"),
    "one at least": (ticks_daily(HOURS_OF_DAY, "UTC", utc("2026-11-21T07:00"), timedelta(0)), "21T12:30"),
    "a whole day": (ticks_daily([time(7)], "UTC", utc("2026-11-21T07:00"), timedelta(days=1)), "22T07:00"),
}


@pytest.mark.parametrize("name", EVERY)
def test_ticks_come_after_now_and_are_aligned_to_their_period_hours_or_expression(name: str) -> None:
    ticks, expected = EVERY[name]
    assert " ".join(tick.isoformat(timespec="minutes")[8:16] for tick in ticks) == expected


@given(
    now=MOMENTS | st.just(utc("1969-07-20T20:17")),
    period=st.timedeltas(timedelta(microseconds=1), timedelta(days=400)),
    ahead=st.integers(1, 20),
)
def test_periods_are_counted_from_the_epoch(now: datetime, period: timedelta, ahead: int) -> None:
    ticks = ticks_every(period, now, ahead)
    assert len(ticks) == ahead
    assert timedelta(0) < ticks[0] - now <= period
    assert all(later - earlier == period for earlier, later in pairwise(ticks))
    assert not (ticks[0] - datetime(1970, 1, 1, tzinfo=UTC)) % period


SKIPPED = [
    ("Europe/Oslo", "2026-03-28T12:00", time(2, 30), ["28 02:30", "30 02:30"]),
    ("America/New_York", "2026-03-07T12:00", time(2, 30), ["07 02:30", "09 02:30"]),
    ("Australia/Lord_Howe", "2026-10-03T05:00", time(2, 15), ["03 02:15", "05 02:15"]),
]
DOUBLED = [
    ("Europe/Oslo", "2026-10-24T12:00", time(2, 30), "25 02:30 +0200", "2026-10-25T00:30"),
    ("America/New_York", "2026-10-31T12:00", time(1, 30), "01 01:30 -0400", "2026-11-01T05:30"),
    ("Australia/Lord_Howe", "2026-04-04T05:00", time(1, 45), "05 01:45 +1100", "2026-04-04T14:45"),
]


@pytest.mark.parametrize(("zone", "day_before", "hour", "shown"), SKIPPED, ids=[case[0] for case in SKIPPED])
def test_an_hour_that_a_time_change_skips_gives_no_tick(
    zone: str, day_before: str, hour: time, shown: list[str]
) -> None:
    ticks = ticks_daily([hour], zone, utc(day_before) - timedelta(days=1), timedelta(days=3, hours=6))
    assert [text[:8] for text in clock(ticks, zone)] == shown


@pytest.mark.parametrize(("zone", "day_before", "hour", "shown", "moment"), DOUBLED, ids=[case[0] for case in DOUBLED])
def test_an_hour_that_occurs_twice_gives_one_tick_at_its_first_occurrence(
    zone: str, day_before: str, hour: time, shown: str, moment: str
) -> None:
    first = utc(moment)
    assert ticks_daily([hour], zone, utc(day_before), timedelta(days=1)) == [first]
    assert clock([first], zone) == [shown]
    for after in (timedelta(minutes=10), timedelta(hours=1)):  # between the two, and at the second
        [tick] = ticks_daily([hour], zone, first + after, timedelta(days=1))
        assert tick - first > timedelta(hours=20)


EVERY_HALF_HOUR = [
    ("Europe/Oslo", "2026-03-29T00:15", ["29 01:30 +0100", "29 03:00 +0200", "29 03:30 +0200", "29 04:00 +0200"]),
    ("Europe/Oslo", "2026-10-25T00:15", ["25 02:30 +0200", "25 03:00 +0100", "25 03:30 +0100"]),
    ("America/New_York", "2026-03-08T06:15", ["08 01:30 -0500", "08 03:00 -0400", "08 03:30 -0400", "08 04:00 -0400"]),
    ("America/New_York", "2026-11-01T05:15", ["01 01:30 -0400", "01 02:00 -0500", "01 02:30 -0500"]),
    (
        "Australia/Lord_Howe",
        "2026-10-03T15:15",
        ["04 02:30 +1100", "04 03:00 +1100", "04 03:30 +1100", "04 04:00 +1100"],
    ),
    ("Australia/Lord_Howe", "2026-04-04T14:15", ["05 01:30 +1100", "05 02:00 +1030", "05 02:30 +1030"]),
]


@pytest.mark.parametrize(("zone", "now", "shown"), EVERY_HALF_HOUR, ids=[f"{z} {n}" for z, n, _ in EVERY_HALF_HOUR])
def test_every_half_hour_each_time_that_a_clock_shows_gives_one_tick(zone: str, now: str, shown: list[str]) -> None:
    assert (
        clock(ticks_cron("*/30 * * * *", zone, utc(now), timedelta(hours=2, minutes=20)), zone)[: len(shown)] == shown
    )


@given(now=MOMENTS, zone=st.sampled_from(ZONES), hours=HOURS, ahead=st.timedeltas(timedelta(0), WEEK))
def test_daily_ticks_ascend_after_now_show_their_hours_and_are_complete(
    now: datetime, zone: str, hours: list[time], ahead: timedelta
) -> None:
    ticks = ticks_daily(hours, zone, now, ahead)
    assert ticks == sorted(set(ticks))
    assert now < ticks[0]
    assert ticks[-1] - now <= ahead or len(ticks) == 1
    assert {tick.utcoffset() for tick in ticks} == {timedelta(0)}
    walls = [tick.astimezone(ZoneInfo(zone)).replace(tzinfo=None) for tick in ticks]
    assert {wall.time() for wall in walls} <= set(hours)
    assert len(set(walls)) == len(walls)
    assert [again for tick in [now, *ticks[:-1]] for again in ticks_daily(hours, zone, tick, timedelta(0))] == ticks


@given(now=MOMENTS, zone=st.sampled_from(ZONES), expression=st.sampled_from(EXPRESSIONS))
def test_cron_ticks_are_the_same_from_any_starting_moment(now: datetime, zone: str, expression: str) -> None:
    ticks = ticks_cron(expression, zone, now, timedelta(days=2))
    assert ticks == sorted(set(ticks))
    assert now < ticks[0]
    assert ticks[-1] - now <= timedelta(days=2) or len(ticks) == 1
    last = ticks[-1]
    assert ticks_cron(expression, zone, last - timedelta(microseconds=1), timedelta(0)) == [last]
    again, at = [], now
    while at < last:
        again += ticks_cron(expression, zone, at, timedelta(0))
        at = again[-1]
    assert again == ticks


def test_a_cron_expression_and_the_hours_of_the_day_agree() -> None:
    now = utc("2026-01-01T00:00")
    for zone in ZONES:
        hours = [time(hour, minute) for hour in (1, 2) for minute in (15, 30, 45)]
        of_hours = ticks_daily(hours, zone, now, timedelta(days=366))
        assert ticks_cron("15,30,45 1,2 * * *", zone, now, timedelta(days=366)) == of_hours


def test_the_zone_of_now_does_not_matter() -> None:
    now = utc("2026-10-25T00:15")
    for zone in (ZoneInfo("Europe/Oslo"), ZoneInfo("Asia/Tokyo"), timezone(timedelta(hours=-3))):
        local = now.astimezone(zone)
        assert ticks_every(timedelta(hours=1), local) == ticks_every(timedelta(hours=1), now)
        assert ticks_daily([time(2, 30)], "Europe/Oslo", local) == ticks_daily([time(2, 30)], "Europe/Oslo", now)
        assert ticks_cron("30 2 * * *", "Europe/Oslo", local) == ticks_cron("30 2 * * *", "Europe/Oslo", now)


def test_a_zone_is_a_name_or_an_object_with_one_and_both_make_the_same_ticks() -> None:
    """pendulum.timezone(), as a DAG has it, or a ZoneInfo."""
    hours, name = [time(8)], "Europe/Oslo"
    for zone in (pendulum.timezone(name), ZoneInfo(name)):
        assert ticks_daily(hours, zone, NOW) == ticks_daily(hours, name, NOW)
        assert ticks_cron("@daily", zone, NOW) == ticks_cron("@daily", name, NOW)
        assert Schedule.daily(hours, zone).hash(None) == Schedule.daily(hours, name).hash(None)


NOW = utc("2026-01-01T00:00")
NAIVE, LAST_DAY = NOW.replace(tzinfo=None), datetime(9999, 12, 31, 12, tzinfo=UTC)
INVALID: dict[str, Callable[[], object]] = {
    "no period": lambda: ticks_every(timedelta(0), NOW),
    "no ticks": lambda: ticks_every(timedelta(hours=1), NOW, 0),
    "a period without a zone": lambda: ticks_every(timedelta(hours=1), NAIVE),
    "a period to the year 9999": lambda: ticks_every(timedelta(days=400), datetime(9999, 12, 1, tzinfo=UTC)),
    "no hours": lambda: ticks_daily([], "UTC", NOW),
    "an hour with a zone": lambda: ticks_daily([time(8, tzinfo=UTC)], "UTC", NOW),
    "hours without a zone": lambda: ticks_daily([time(8)], "UTC", NAIVE),
    "an unknown zone": lambda: ticks_daily([time(8)], "Europe/Nowhere", NOW),
    "a fixed offset": lambda: ticks_daily([time(8)], cast("Any", pendulum.timezone(7200)), NOW),
    "a path as a zone": lambda: ticks_daily([time(8)], "../etc/passwd", NOW),
    "hours to the year 9999": lambda: ticks_daily([time(8)], "UTC", LAST_DAY),
    "an empty zone": lambda: ticks_cron("0 8 * * *", "", NOW),
    "an expression without a zone": lambda: ticks_cron("0 8 * * *", "UTC", NAIVE),
    "an expression to the end of time": lambda: ticks_cron("0 8 * * *", "UTC", LAST_DAY),
}
EXPRESSIONS_WITHOUT_TICKS = ["", "0 8 * *", "0 0 8 * * *", "61 * * * *", "*/0 * * * *", "x y z a b", "0 0 30 2 *"]
EXPRESSIONS_WITHOUT_TICKS += ["R * * * *", "r(0-9) * * * *", "H * * * *", "@reboot"]
INVALID |= {each: partial(ticks_cron, each, "UTC", NOW) for each in EXPRESSIONS_WITHOUT_TICKS}


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_schedule_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(InvalidArgument, match="9999" if "9999" in name else ".") as error:
        INVALID[name]()
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda now, length: ticks_every(timedelta(minutes=1), now, length // timedelta(minutes=1)),
        lambda now, length: ticks_daily(
            [time(hour, minute) for hour in range(24) for minute in range(60)], "UTC", now, length
        ),
        lambda now, length: ticks_cron("* * * * *", "UTC", now, length),
    ],
    ids=["every", "daily", "cron"],
)
def test_a_schedule_of_too_many_ticks_is_refused(
    make: Callable[[datetime, timedelta], list[datetime]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert schedules.MAX_TICKS == 100_000
    monkeypatch.setattr(schedules, "MAX_TICKS", 500)  # a hundred thousand times of a cron expression take five seconds
    now, most = utc("2026-01-01T00:00"), timedelta(minutes=500)
    assert len(make(now, most)) == 500
    for more in (most + timedelta(minutes=1), timedelta.max - timedelta(days=1)):
        with pytest.raises(InvalidArgument, match="at most 500 ticks"):
            make(now, more)


@pytest.mark.parametrize(
    ("parts", "digits"),
    [
        ((), "4f53cda18c2baa0c0354bb5f9a3ecbe5"),
        (("every", 3600), "5d0cf6b0cf5bd177cc97dfd515b39262"),
        (({"b": [1, None, True], "a": "é\ud800"},), "b203d2480b19682ab709b87c692cef9d"),
    ],
)
def test_a_hash_is_the_same_in_every_process_and_version(parts: tuple[Json, ...], digits: str) -> None:
    """The values are pinned: another hash in a new release would remove every tick and store it again."""
    assert config_hash(*parts) == digits


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(JSON, max_size=3))
def test_a_hash_is_32_hexadecimal_digits_whatever_the_order_of_keys(parts: list[Json]) -> None:
    turned = [dict(reversed(part.items())) if isinstance(part, dict) else part for part in parts]
    digits = config_hash(*parts)
    assert digits == config_hash(*turned)
    assert len(digits) == 32
    assert int(digits, 16) >= 0


def test_configurations_that_differ_have_different_hashes() -> None:
    maps: list[Json] = [{"a": 1}, {"a": "1"}, {"a": None}]
    alone: list[Json] = [None, 1, 1.0, "1", True, 0, 0.0, -0.0, False, "", [], {}, [1], [1, 2], "ab", "true", "null"]
    different: list[list[Json]] = [[part] for part in [*alone, *maps]]
    different += [[], [1, 2], ["a", "b"], [[], []], [None, None]]
    assert len({config_hash(*parts) for parts in different}) == len(different)


@pytest.mark.parametrize("part", [float("nan"), float("inf"), {1: "x"}, timedelta(1), {"a": {2: 3}}, [object()], b"x"])
def test_a_value_that_is_not_json_has_no_hash(part: Json) -> None:
    with pytest.raises(InvalidArgument, match="JSON"):
        config_hash(part)


def test_the_queue_is_imported_without_the_library_for_cron() -> None:
    """A Spark executor has psycopg and nothing more."""
    program = (
        "import sys, airflow_provider_taskq.queue\n"
        "assert not {'croniter', 'dateutil', 'pendulum', 'pytz'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
