"""Durations, moments and text, as people write and read them."""

from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_taskq.cli.text import plain
from airflow_provider_taskq.cli.words import ago, duration_of, exactly, in_words, moment_at, moment_of

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("5m", 300), ("5min", 300), ("1h30m", 5400), ("1 h 30 m", 5400), ("2d", 172_800), ("1.5", 1.5)],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert duration_of(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "soon", "5 parsecs", "1h30", "-5m", "5m!", "99999999999w"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|longer"):
        duration_of(text)


@pytest.mark.parametrize("text", ["1m30s", "3h", "4w2d", "250ms", "0s"])
def test_durations_are_told_as_they_are_read(text: str) -> None:
    assert exactly(duration_of(text)) == text


def test_moments_are_read_in_a_zone_or_as_how_long_ago() -> None:
    assert moment_of("2026-11-21T09:30+02:00") == datetime(2026, 11, 21, 7, 30, tzinfo=UTC)
    assert moment_of("2026-11-21") == datetime(2026, 11, 21).astimezone(UTC)
    assert moment_at(moment_of("2h"), NOW) == datetime(2026, 11, 21, 10, tzinfo=UTC)
    with pytest.raises(ValueError, match="no moment"):
        moment_of("yesterday")


def test_ages_are_told_in_words() -> None:
    assert [in_words(timedelta(seconds=s)) for s in (0, 119, 120, 7199, 7200, 11_100, 172_800)] == [
        *("0 s", "119 s", "2 min", "119 min", "2 h", "3 h 5 min", "2 days")
    ]
    assert ago(NOW - timedelta(minutes=5), NOW) == "5 min ago"
    assert ago(NOW + timedelta(minutes=5), NOW) == "in 5 min"
    assert ago(None, NOW) == ""


def test_text_that_steers_a_terminal_is_written_out() -> None:
    assert plain("\x1b[31mred\x07\x9b2J") == "\\x1b[31mred\\x07\\x9b2J"
    assert plain("a\tb\nc\r") == "a\\tb\\nc\\r"
    assert plain("a\tb\nc", lines=True) == "a\tb\nc"
    assert plain("\u202egnp.exe\u2028\ufeff") == "\\u202egnp.exe\\u2028\\ufeff"
    assert plain("Zoë's 訂單 №17 🚀") == "Zoë's 訂單 №17 🚀"
