"""Backoff: pauses that double up to a maximum, with jitter."""

import pytest

from airflow_provider_taskq.queue.backoff import Backoff

pytestmark = pytest.mark.promise("A worker continues after errors of polls, handlers and connections")


def test_pauses_double_up_to_the_maximum() -> None:
    backoff = Backoff(0.1, 1.0, jitter=0)
    assert [backoff.next() for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert backoff.failures == 6
    assert {backoff.next() for _ in range(10_000)} == {1.0}, "it does not overflow"
    backoff.reset()
    assert (backoff.failures, backoff.next()) == (0, 0.1)


def test_jitter_shortens_a_pause_by_at_most_its_share() -> None:
    backoff = Backoff(10.0, 10.0, jitter=0.5)
    pauses = [backoff.next() for _ in range(1000)]
    assert 5.0 <= min(pauses) < 6.0
    assert 9.0 < max(pauses) <= 10.0


def test_a_program_tries_again_within_five_seconds_after_an_outage_of_any_length() -> None:
    backoff = Backoff(jitter=0)
    assert max(backoff.next() for _ in range(100)) == 5.0
