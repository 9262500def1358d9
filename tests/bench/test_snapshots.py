"""The benchmark during long transactions, on its smallest scale."""

import os

import pytest

from bench.snapshots import parse, run


@pytest.mark.slow
@pytest.mark.faults
def test_both_servers_hand_out_tasks_of_each_shape() -> None:
    programs = os.environ.get("TASKQ_TEST_PROGRAMS")
    given = ["--shapes", "retries", "watch", "--sizes", "100", "--minutes", "2", "--seconds", "1"]

    retries, watch = run(parse([*given, *(["--programs", programs] if programs else [])]))

    for measured in (retries, watch):
        assert len(measured.minutes) == 2
        for pinned, free in measured.minutes:
            assert pinned.minute.rate > 0
            assert free.minute.rate > 0
            assert pinned.age >= 20  # the transactions before the first minute, at least
