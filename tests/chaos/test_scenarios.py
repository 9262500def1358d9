"""The short leg of the chaos suite: some scenarios, for a few seconds each. `make chaos` runs all of them."""

import json
from pathlib import Path

import pytest

from tests.chaos.run import run
from tests.chaos.scenarios import SCENARIOS

SECONDS = 4.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.mark.parametrize("name", ["processes", "sessions", "crash", "cut", "moved", "upgrade"])
def test_nothing_is_lost_and_no_decision_is_committed_twice(tmp_path: Path, name: str) -> None:
    found = run(name, SCENARIOS[name], tmp_path / name, SECONDS)
    assert [f"{violation.rule}: {violation.detail}" for violation in found.violations] == []
    assert (found.lost, found.twice) == (0, 0)
    assert found.pushed > 0
    assert found.decided >= found.pushed


def test_a_scenario_without_a_fault_decides_each_task_in_its_first_attempt(tmp_path: Path) -> None:
    found = run("quiet", SCENARIOS["quiet"], tmp_path / "quiet", SECONDS)
    assert found.violations == []
    lines = (tmp_path / "quiet" / "history" / "end.jsonl").read_text().splitlines()
    attempts = [event["attempt"] for event in map(json.loads, lines) if event["kind"] == "effect"]
    assert len(attempts) == found.decided
    assert set(attempts) == {1}
