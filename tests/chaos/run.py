"""Runs a scenario: load, a fault, load again, and the judgment of the history."""

import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.chaos.checker import History, Promises, Violation, judge
from tests.chaos.history import Event, read
from tests.chaos.scenarios import Scenario

AROUND = 20.0  # seconds
LOST = {"lost", "skipped"}
TWICE = {"effects", "superseded", "unclaimed", "twice at once", "one at a time", "read twice"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a scenario.

    :param pushed: tasks whose push had an answer.
    :param before: decisions a second before the fault; `during` and `after`: in and after the fault.
    :param pause: the longest time without a decision, in seconds, from the begin of the fault on.
    :param resumed: seconds from the end of the fault to the next decision.
    """

    scenario: str
    pushed: int
    decided: int
    violations: list[Violation]
    before: float
    during: float
    after: float
    pause: float
    resumed: float

    @property
    def lost(self) -> int:
        """The number of tasks and events that were lost."""
        return sum(each.rule in LOST for each in self.violations)

    @property
    def twice(self) -> int:
        """The number of tasks and events that were handed out, ended or read more than once."""
        return sum(each.rule in TWICE for each in self.violations)


def run(name: str, scenario: Scenario, folder: Path, seconds: float) -> Outcome:
    """Runs a scenario whose fault lasts for `seconds`, with half of that before and after it, at most `AROUND`."""
    around = min(seconds / 2, AROUND)
    with scenario.site(folder) as site:
        marks = [time.monotonic()]
        time.sleep(around)  # the length of the phase
        marks.append(time.monotonic())
        scenario.fault(site, seconds)
        marks.append(time.monotonic())
        time.sleep(around)  # the length of the phase
        marks.append(time.monotonic())
        site.finish()
    return outcome(name, list(read(folder / "history")), marks)


def outcome(name: str, events: Sequence[Event], marks: Sequence[float]) -> Outcome:
    """Judges a history. `marks` are the moments between the phases."""
    history = History.of(events)
    moments = sorted(event["completed"] for event in history.tasks.values() if event["completed"] is not None)
    begin, fault, after, end = (bisect_left(moments, mark) for mark in marks)
    rates = [
        (last - first) / (until - since)
        for (first, last), (since, until) in zip(pairwise((begin, fault, after, end)), pairwise(marks), strict=True)
    ]
    following = [marks[1], *moments[fault:]]
    return Outcome(
        scenario=name,
        pushed=sum(push["ended"] is not None for push in history.pushes.values()),
        decided=sum(len(effects) for effects in history.effects.values()),
        violations=judge(events, Promises()),
        before=rates[0],
        during=rates[1],
        after=rates[2],
        pause=max((second - first for first, second in pairwise(following)), default=0.0),
        resumed=moments[after] - marks[2] if after < len(moments) else float("inf"),
    )
