"""The short leg of the chaos suite: some scenarios, for a few seconds each. `make chaos` runs all of them."""

import json
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from airflow_provider_taskq.queue import Condition
from tests.chaos.__main__ import COLUMNS, row
from tests.chaos.faults import cut_connections
from tests.chaos.programs import Options
from tests.chaos.run import run
from tests.chaos.scenarios import SCENARIOS
from tests.chaos.site import Site

SECONDS = 4.0
LIGHT = Options(rate=50.0, work=0.03)  # a slow machine handles it, too
CHECK = " AND fence = p_fence"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.mark.parametrize("name", ["processes", "sessions", "crash", "cut", "moved", "upgrade"])
def test_nothing_is_lost_and_no_decision_is_committed_twice(tmp_path: Path, name: str) -> None:
    found = run(name, replace(SCENARIOS[name], options=LIGHT), tmp_path / name, SECONDS)
    assert [f"{violation.rule}: {violation.detail}" for violation in found.violations] == []
    assert found.unfinished == []
    assert found.pushed > 0
    assert found.decided >= found.pushed
    assert found.behind > 0


def test_a_worker_that_is_stopped_for_longer_than_its_lease_loses_its_tasks_to_another(tmp_path: Path) -> None:
    found = run("stopped", replace(SCENARIOS["stopped"], options=LIGHT), tmp_path / "stopped", SECONDS)
    assert (found.violations, found.unfinished) == ([], [])
    assert found.again
    assert found.notes == ["stopped: loop-1, loop-2, worker, reader-1, reader-2"]


def test_a_worker_that_is_killed_with_tasks_in_hand_loses_them_to_its_successor(tmp_path: Path) -> None:
    found = run("worker", replace(SCENARIOS["worker"], options=LIGHT), tmp_path / "worker", SECONDS)
    assert (found.violations, found.unfinished) == ([], [])
    assert found.again


def test_a_queue_that_gives_no_turns_is_found_out(tmp_path: Path) -> None:
    options = replace(LIGHT, condition=Condition.NONE)
    found = run("quiet", replace(SCENARIOS["quiet"], options=options), tmp_path / "quiet", SECONDS)
    assert "one at a time" in {violation.rule for violation in found.violations}


def test_a_queue_that_ignores_fences_is_found_out(tmp_path: Path) -> None:
    def cut_without_fences(site: Site, seconds: float) -> str | None:
        with psycopg.connect(site.dsn, autocommit=True) as conn:
            [(body,)] = conn.execute("SELECT pg_get_functiondef('taskq_internal.require_lease'::regproc)").fetchall()
            assert CHECK in body
            conn.execute(body.replace(CHECK, "").encode())
        return cut_connections(1.0)(site, seconds)

    # The programs stay in the transactions of their decisions, so that cuts hit these.
    scenario = replace(SCENARIOS["cut"], options=Options(rate=15.0, work=0.0, dally=0.3), fault=cut_without_fences)
    found = run("cut", scenario, tmp_path / "cut", 4 * SECONDS)
    assert "superseded" in {violation.rule for violation in found.violations}


def test_a_scenario_without_a_fault_decides_each_task_in_its_first_attempt(tmp_path: Path) -> None:
    found = run("quiet", replace(SCENARIOS["quiet"], options=LIGHT), tmp_path / "quiet", SECONDS)
    assert found.violations == []
    assert row("no fault", found).count("|") == len(COLUMNS) + 1
    lines = (tmp_path / "quiet" / "history" / "end.jsonl").read_text().splitlines()
    attempts = [event["attempt"] for event in map(json.loads, lines) if event["kind"] == "effect"]
    assert len(attempts) == found.decided
    assert set(attempts) == {1}
