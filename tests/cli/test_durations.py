"""Durations, moments and texts, as the command line reads and prints them."""

import os
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from airflow_provider_taskq.cli._output import sanitize
from airflow_provider_taskq.cli._times import format_exact, moment_at, parse_moment
from airflow_provider_taskq.queue.durations import parse_duration

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


def test_sanitize_escapes_control_characters() -> None:
    assert sanitize("\x1b[31mred\x07\x9b2J") == "\\x1b[31mred\\x07\\x9b2J"
    assert sanitize("a\tb\nc\r") == "a\\tb\\nc\\r"
    assert sanitize("a\tb\nc", lines=True) == "a\tb\nc"
    assert sanitize("\u202egnp.exe\u2028\ufeff") == "\\u202egnp.exe\\u2028\\ufeff"
    assert sanitize("Zoë's 訂單 №17 🚀") == "Zoë's 訂單 №17 🚀"
