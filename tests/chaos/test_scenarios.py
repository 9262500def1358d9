"""The short leg of the chaos suite: some scenarios, for a few seconds each. `make chaos` runs all of them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.__main__ import COLUMNS, row
from tests.chaos.programs import Options
from tests.chaos.run import run
from tests.chaos.scenarios import SCENARIOS

SECONDS = 4.0
LIGHT = Options(rate=50.0, work=0.03)  # a slow machine handles it, too

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.mark.parametrize("name", ["processes", "sessions", "crash", "cut", "moved", "upgrade"])
def test_nothing_is_lost_and_no_decision_is_committed_twice(tmp_path: Path, name: str) -> None:
    found = run(name, replace(SCENARIOS[name], options=LIGHT), tmp_path / name, SECONDS)
    assert [f"{violation.rule}: {violation.detail}" for violation in found.violations] == []
    assert found.unfinished == []
    assert found.pushed > 0
    assert found.decided >= found.pushed


def test_a_worker_that_is_stopped_for_longer_than_its_lease_loses_its_tasks_to_another(tmp_path: Path) -> None:
    found = run("stopped", replace(SCENARIOS["stopped"], options=LIGHT), tmp_path / "stopped", SECONDS)
    assert (found.violations, found.unfinished) == ([], [])
    assert found.again > 0


def test_a_worker_that_is_killed_with_tasks_in_hand_loses_them_to_its_successor(tmp_path: Path) -> None:
    found = run("worker", replace(SCENARIOS["worker"], options=LIGHT), tmp_path / "worker", SECONDS)
    assert (found.violations, found.unfinished) == ([], [])
    assert found.again > 0


def test_a_scenario_without_a_fault_decides_each_task_in_its_first_attempt(tmp_path: Path) -> None:
    found = run("quiet", replace(SCENARIOS["quiet"], options=LIGHT), tmp_path / "quiet", SECONDS)
    assert found.violations == []
    assert row("no fault", found).count("|") == len(COLUMNS) + 1
    lines = (tmp_path / "quiet" / "history" / "end.jsonl").read_text().splitlines()
    attempts = [event["attempt"] for event in map(json.loads, lines) if event["kind"] == "effect"]
    assert len(attempts) == found.decided
    assert set(attempts) == {1}
