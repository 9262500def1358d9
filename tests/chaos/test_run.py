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


@pytest.mark.parametrize(
    ("wait", "late", "recovery", "fails"),
    [
        (0.0, 0.0, 1.0, False),
        (0.9, 0.0, 1.0, False),
        (1.5, 0.0, 0.95, True),
        (0.5, 0.1, 0.95, True),
        (0.5, 1.0, 0.53, True),
    ],
    ids=["at once", "in time", "too late", "later and later", "at half the pace"],
)
def test_a_scenario_fails_unless_every_task_after_the_fault_ends_in_time(
    wait: float, late: float, recovery: float, fails: bool
) -> None:
    found = judged(wait, late)
    assert found.recovery == pytest.approx(recovery, abs=0.02 if recovery == 1.0 or late == 1.0 else 0.06)
    assert falls_behind(SCENARIOS["quiet"], found) is fails
