"""The short leg of the chaos suite: some scenarios, for a few seconds each. `make chaos` runs all of them."""

import json
import time
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import psycopg
import pytest

from airflow_provider_taskq.queue import Condition, Cursor, PartitionState, TaskQueue, connect
from tests.chaos.checker import judge
from tests.chaos.faults import mislead
from tests.chaos.programs import TOPIC, Options
from tests.chaos.run import run
from tests.chaos.scenarios import SCENARIOS
from tests.chaos.site import LOOPS, Site
from tests.internals import plant_change
from tests.queue.conftest import until

SECONDS = 4.0
LIGHT = Options(rate=50.0, most=400, work=0.03)  # a slow machine handles it, too
DECIDING = "SELECT FROM pg_stat_activity WHERE state = 'idle in transaction' AND query LIKE 'INSERT INTO effect%'"
CUTS = 100

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400), pytest.mark.promise("Nothing is lost")]


SHORT = {
    "processes": SCENARIOS["processes"],
    "sessions": SCENARIOS["sessions"],
    "crash": SCENARIOS["crash"],
    "cut": SCENARIOS["cut"],
    "silent": SCENARIOS["silent"],
    "misled": replace(SCENARIOS["moved"], fault=mislead),
}


@pytest.mark.promise("a worker is killed")
@pytest.mark.promise("Effects in the same database happen once")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "processes" else pytest.mark.faults) for name in SHORT]
)
def test_nothing_is_lost_and_no_decision_is_committed_twice(tmp_path: Path, name: str) -> None:
    found = run(replace(SHORT[name], options=LIGHT), tmp_path / name, SECONDS)
    assert [f"{violation.rule}: {violation.detail}" for violation in found.violations] == []
    assert found.unfinished == []
    assert found.pushed > 0
    assert found.decided >= found.pushed
    assert found.behind > 0


@pytest.mark.promise("Progress is committed with the rows of the handler, or not at all")
@pytest.mark.promise("Another number of partitions leaves no gap and no duplicate")
@pytest.mark.faults
def test_every_event_is_handled_once_and_in_order_although_consumers_are_killed_and_repartitioned(
    tmp_path: Path,
) -> None:
    """The holder of the group is killed. The other one, which waits with another number of partitions, goes on."""

    def has_read(site: Site, partitions: Collection[int], position: Cursor) -> list[PartitionState]:
        """The partitions of the group, if it has one of these numbers of them and each has read beyond a position."""
        with connect(site.dsn) as conn:
            states = TaskQueue(conn).partition_states(TOPIC)
        goes_on = all(each.partitions in partitions and each.cursor > position for each in states)
        return states if goes_on else []

    def repartition(site: Site, _: float) -> None:
        holders = {2: "reader-1", 3: "reader-2"}
        states = until(lambda: has_read(site, holders, Cursor(0)))
        for _ in range(3):
            partitions, position = len(states), max(each.cursor for each in states)
            site.kill(holders[partitions])
            states = until(partial(has_read, site, [each for each in holders if each != partitions], position))
            site.start(holders[partitions])

    roles = {"producer": "produce", "loop-1": "loop", "reader-1": "read", "reader-2": "read in three"}
    scenario = replace(SCENARIOS["quiet"], roles=roles, options=replace(LIGHT, rate=20.0, lease=2.0), fault=repartition)
    found = run(scenario, tmp_path / "readers", SECONDS)
    assert (found.violations, found.unfinished) == ([], [])


@pytest.mark.chaos
def test_a_worker_that_is_stopped_for_longer_than_its_lease_loses_its_tasks_to_another(tmp_path: Path) -> None:
    found = run(replace(SCENARIOS["stopped"], options=LIGHT), tmp_path / "stopped", SECONDS)
    assert (found.violations, found.unfinished) == ([], [])
    assert found.again
    assert found.notes == ["stopped: loop-1, loop-2, worker, reader-1, reader-2"]


@pytest.mark.faults
def test_a_worker_that_is_killed_with_tasks_in_hand_loses_them_to_its_successor(tmp_path: Path) -> None:
    found = run(replace(SCENARIOS["worker"], options=LIGHT), tmp_path / "worker", SECONDS)
    assert (found.violations, found.unfinished) == ([], [])
    assert found.again


@pytest.mark.faults
def test_a_queue_that_gives_no_turns_is_found_out(tmp_path: Path) -> None:
    options = replace(LIGHT, condition=Condition.NONE)
    found = run(replace(SCENARIOS["quiet"], options=options), tmp_path / "quiet", SECONDS)
    assert "one at a time" in {violation.rule for violation in found.violations}


@pytest.mark.faults
def test_a_queue_that_ignores_fences_is_found_out(tmp_path: Path) -> None:
    def rules(site: Site) -> set[str]:
        return {violation.rule for violation in judge(chain.from_iterable(map(site.recorded, LOOPS)))}

    def has_decided(site: Site, name: str, since: float) -> bool:
        decided = (each for each in site.recorded(name) if each["kind"] == "decision" and each["began"] > since)
        return any(each["ended"] is not None for each in decided)

    def cut_without_fences(site: Site, _: float) -> None:
        with psycopg.connect(site.dsn, autocommit=True) as conn:
            plant_change(conn, "decisions ignore fences")
            for _ in range(CUTS):
                until(lambda: conn.execute(DECIDING.encode()).rowcount)
                site.proxied.cut()
                for name in LOOPS:
                    until(partial(has_decided, site, name, time.monotonic()), pause=0.1)
                if "superseded" in rules(site):
                    return

    # A loop that was cut in the transaction of its decision repeats it at once, or under its next registration.
    options = Options(rate=15.0, work=0.0, dally=1.0)
    roles = {"producer": "produce", **LOOPS, "reader-1": "read"}
    scenario = replace(SCENARIOS["cut"], options=options, roles=roles, fault=cut_without_fences)
    found = run(scenario, tmp_path / "cut", SECONDS)
    assert "superseded" in {violation.rule for violation in found.violations}


@pytest.mark.faults
def test_a_scenario_without_a_fault_decides_each_task_in_its_first_attempt(tmp_path: Path) -> None:
    found = run(replace(SCENARIOS["quiet"], options=LIGHT), tmp_path / "quiet", SECONDS)
    assert found.violations == []
    lines = (tmp_path / "quiet" / "history" / "end.jsonl").read_text().splitlines()
    attempts = [event["attempt"] for event in map(json.loads, lines) if event["kind"] == "effect"]
    assert len(attempts) == found.decided
    assert set(attempts) == {1}
