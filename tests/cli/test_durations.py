"""Durations, moments and texts, as the command line reads and prints them."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone

import pytest

from airflow_provider_taskq.cli._output import sanitize
from airflow_provider_taskq.cli._times import (
    format_age,
    format_attempt_times,
    format_duration,
    format_exact,
    format_short,
    moment_at,
    parse_moment,
)
from airflow_provider_taskq.queue.durations import parse_duration
from airflow_provider_taskq.queue.encoding import FIRST_MOMENT, LAST_MOMENT

pytestmark = pytest.mark.promise("A duration or a moment is stored as written, or refused")

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.mark.parametrize("text", ["1m30s", "3h", "4w2d", "250ms", "0s"])
def test_parse_duration_reads_the_output_of_format_exact(text: str) -> None:
    assert format_exact(parse_duration(text)) == text


def test_parse_moment_reads_a_zone_or_a_duration_ago() -> None:
    assert parse_moment("2026-11-21T09:30+02:00") == datetime(2026, 11, 21, 7, 30, tzinfo=UTC)
    assert parse_moment("2026-11-21") == parse_moment("20261121") == datetime(2026, 11, 21).astimezone(UTC)
    assert parse_moment("2026-W47-6") == parse_moment("2026-325") == datetime(2026, 11, 21).astimezone(UTC)
    for text in ("2h", "PT2H", "7200"):
        assert moment_at(parse_moment(text), NOW) == datetime(2026, 11, 21, 10, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "2026-01-01/2026-02-01", "2026-01-01/PT2H", "6:", "P"])
def test_parse_moment_refuses_other_text_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid moment .*: expected for example 2026-11-21T09:30, or 2h"):
        parse_moment(text)


def test_parse_moment_without_an_offset_uses_the_machines_time_zone() -> None:
    program = (
        "from airflow_provider_taskq.cli._times import parse_moment\n"
        "print(parse_moment('2026-07-01T12:00').isoformat())"
    )
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "TZ": "America/New_York"}
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert output.strip() == "2026-07-01T16:00:00+00:00"


def seconds(span: float) -> timedelta:
    return timedelta(seconds=span)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        *zip(
            map(format_duration, map(seconds, (0, 119, 120, 7199, 7200, 11_100, 172_800))),
            ("0 s", "119 s", "2 min", "119 min", "2 h", "3 h 5 min", "2 days"),
            strict=True,
        ),
        *zip(
            map(format_short, map(seconds, (0, 0.04, 0.9994, 0.9996, 1.24, 3, 9.94, 10.6, 130))),
            ("0 ms", "40 ms", "999 ms", "1 s", "1.2 s", "3 s", "9.9 s", "11 s", "2 min"),
            strict=True,
        ),
        (format_attempt_times(seconds(3), seconds(1.2)), "waited 3 s · ran 1.2 s"),
        (format_attempt_times(seconds(3), seconds(0), "running for"), "waited 3 s · running for 0 ms"),
        (format_attempt_times(None, None), ""),
        (format_age(NOW - seconds(4), NOW), "a few seconds ago"),
        (format_age(NOW - seconds(59), NOW), "59 seconds ago"),
        (format_age(NOW.astimezone(timezone(timedelta(hours=5))) - seconds(300), NOW), "5 minutes ago"),
        (format_age(NOW - timedelta(days=15), NOW), "2 weeks ago"),
        (format_age(NOW + timedelta(hours=3), NOW), "in 3 hours"),
        (format_age(FIRST_MOMENT, NOW), "2026 years ago"),
        (format_age(LAST_MOMENT, NOW), "in 7973 years"),
        (format_age(None, NOW), ""),
    ],
)
def test_durations_and_ages_are_written_in_few_words(written: str, text: str) -> None:
    assert written == text


def test_sanitize_escapes_control_characters() -> None:
    assert sanitize("\x1b[31mred\x07\x9b2J") == "\\x1b[31mred\\x07\\x9b2J"
    assert sanitize("a\tb\nc\r") == "a\\tb\\nc\\r"
    assert sanitize("a\tb\nc", lines=True) == "a\tb\nc"
    assert sanitize("\u202egnp.exe\u2028\ufeff") == "\\u202egnp.exe\\u2028\\ufeff"
    assert sanitize("Zoë's 訂單 №17 🚀") == "Zoë's 訂單 №17 🚀"
