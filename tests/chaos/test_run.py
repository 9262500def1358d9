"""The judgment of a run: whether the work goes on after a fault as before it."""

from collections.abc import Iterator

import pytest

from tests.chaos.__main__ import falls_behind
from tests.chaos.checker import Promises
from tests.chaos.history import Event
from tests.chaos.run import Outcome, outcome
from tests.chaos.scenarios import SCENARIOS

MARKS = [0.0, 10.0, 19.0, 20.0, 30.0]  # the phases before, in and right after a fault, and the last one
SOON = 1.0


def steady(wait: float, late: float) -> Iterator[Event]:
    """Ten tasks a second for 30 seconds, each of which ends after `wait`. Those of the last 10 seconds wait longer.

    :param late: seconds more for each second since the fault.
    """
    for number in range(300):
        began = number / 10
        ended = began + wait + max(0.0, began - 20.0) * late
        task = {"task": f"t{number}", "identifier": f"i{number}", "state": "SUCCEEDED", "error": None}
        yield {"kind": "push", "began": began, "ended": began, **task}
        yield {"kind": "task", "began": 99.0, "ended": 99.0, "completed": ended, **task}


def judged(wait: float, late: float = 0.0) -> Outcome:
    return outcome("steady", 10.0, Promises(), list(steady(wait, late)), MARKS, SOON, [], [])


@pytest.mark.parametrize("wait", [0.0, 0.55, 0.9])
def test_workers_that_keep_pace_have_recovered_whole_wherever_the_phase_ends(wait: float) -> None:
    assert judged(wait).recovery == 1.0


def test_workers_that_fall_behind_have_recovered_in_part() -> None:
    found = judged(0.5, late=1.0)  # half of the pace
    assert found.recovery == pytest.approx(0.53, abs=0.02)  # what ended until 31 s was pushed until 25.25 s
    assert found.rate == pytest.approx(0.53, abs=0.02)


def test_workers_that_end_nothing_have_not_recovered() -> None:
    events = [each for each in steady(0.5, 0.0) if each["kind"] == "push" or each["completed"] < 20.0]
    assert outcome("steady", 10.0, Promises(), events, MARKS, SOON, [], []).recovery == 0.0


@pytest.mark.parametrize(("wait", "late", "behind"), [(0.5, 0.0, False), (0.5, 0.1, True), (1.5, 0.0, True)])
def test_a_scenario_fails_unless_every_task_after_the_fault_ends_in_time(
    wait: float, late: float, behind: bool
) -> None:
    assert falls_behind(SCENARIOS["quiet"], judged(wait, late)) is behind
