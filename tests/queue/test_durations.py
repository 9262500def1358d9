"""Durations as text: one parser reads them for all settings."""

import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_taskq.queue import InvalidArgument
from airflow_provider_taskq.queue.arguments import to_timedelta
from airflow_provider_taskq.queue.backoff import Backoff
from airflow_provider_taskq.queue.durations import parse_duration

pytestmark = pytest.mark.promise("A duration or a moment is stored as written, or refused")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("90s", 90), ("5m", 300), ("5min", 300), ("1h30m", 5400), ("1 h 30 m", 5400)),
        *(("2d", 172_800), ("1w", 604_800), ("300", 300), ("1.5", 1.5), ("0", 0), ("250ms", 0.25)),
        *(("PT5M", 300), ("pt5m", 300), ("PT6S", 6), ("PT0.5S", 0.5), ("P1DT2H", 93_600), ("PT36H", 129_600)),
        *(("P1W", 604_800), ("PT0S", 0), ("PT1,5S", 1.5), ("PT999999999S", 999_999_999)),
    ],
)
def test_durations_are_read_in_short_form_as_seconds_and_in_iso_8601(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)
    assert to_timedelta(text) == timedelta(seconds=seconds)


EXAMPLES = "expected for example 90s, 5m, PT5M"
NO_LENGTH = "years and months have no fixed length; use days, as in P30D"
TOO_LONG = "is too long: at most 365000 days are possible"
REFUSED = {
    **dict.fromkeys(["", " ", "soon", "5 parsecs", "1h30", "-5m", "5m!", "\u0663s", "5M"], EXAMPLES),
    **dict.fromkeys(["P", "PT", "PT5", "-PT5M", "PT-5M", "PT5M ", "P2026-01-01", "PT5M/PT6M", "P1H", "PTM"], EXAMPLES),
    **dict.fromkeys(["P1Y", "P1M", "P1Y2M10DT2H30M"], NO_LENGTH),
    **dict.fromkeys(["99999999999w", "9" * 400 + "s", "P99999999999W", "P999999999W", "PT4294967301S"], TOO_LONG),
}


@pytest.mark.parametrize(("text", "reason"), REFUSED.items())
def test_a_text_that_is_no_duration_or_too_long_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(reason)):
        parse_duration(text)


def test_without_pendulum_short_durations_are_read_and_iso_8601_names_the_missing_library() -> None:
    """A Spark executor, or a driver on a cluster, may have psycopg and nothing more."""
    program = (
        "import sys; sys.modules['pendulum'] = None\n"
        "from airflow_provider_taskq.queue.durations import parse_duration\n"
        "print(parse_duration('90s'))\n"
        "try: parse_duration('PT5M')\n"
        "except ValueError as error: print(error)"
    )
    command = [sys.executable, "-c", program]
    reported = subprocess.run(command, env={"PYTHONPATH": str(Path.cwd())}, capture_output=True, text=True, check=True)
    assert reported.stdout.splitlines() == [
        "0:01:30",
        "invalid duration 'PT5M': ISO 8601 needs pendulum, which is not installed here; write 5m or 90s",
    ]


# Back-off


@pytest.mark.promise("A worker continues after errors of polls, handlers and connections")
def test_a_program_tries_again_within_five_seconds_after_an_outage_of_any_length() -> None:
    """After pauses that double."""
    backoff = Backoff(0.1, jitter=0)
    assert [backoff.next() for _ in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert backoff.failures == 8
    assert {backoff.next() for _ in range(10_000)} == {5.0}, "it does not overflow"
    backoff.reset()
    assert (backoff.failures, backoff.next()) == (0, 0.1)


@pytest.mark.promise("A worker continues after errors of polls, handlers and connections")
def test_jitter_shortens_a_pause_by_at_most_its_share() -> None:
    backoff = Backoff(10.0, 10.0, jitter=0.5)
    pauses = [backoff.next() for _ in range(1000)]
    assert 5.0 <= min(pauses) < 6.0
    assert 9.0 < max(pauses) <= 10.0
