"""Runs a scenario: load, a fault, load again, and the judgment of the history."""

import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path

from tests.chaos.checker import History, Promises, Violation, judge
from tests.chaos.history import Event, read
from tests.chaos.programs import GROUP
from tests.chaos.scenarios import Scenario

LAST = 20.0  # seconds of the last phase, at most
LOST = {"lost", "skipped"}
GROUPS = frozenset({GROUP})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a scenario.

    :param pushed: tasks whose push had an answer.
    :param again: tasks with claims of several owners or registrations; None if claims are not recorded.
    :param behind: tasks that were pushed while an earlier one of their identifier had not ended.
    :param offered: the tasks that the producer pushes in a second.
    :param before: decisions a second before the fault; `during`: in the fault; `after`: when the backlog is gone.
    :param recovery: of the tasks that were pushed in that last phase, the share that ended within it or soon after.
    :param pause: the longest time without a decision, in seconds, from the begin of the fault on.
    :param recovered: seconds from the end of the fault until all programs go on and there is no backlog.
    :param waited: the longest time from a push to the end of its task, in seconds; `read` to the read of its event.
    :param notes: what the fault reports, and what did not come to an end.
    """

    pushed: int
    decided: int
    again: int | None
    behind: int
    offered: float
    violations: list[Violation]
    before: float
    during: float
    after: float
    recovery: float
    pause: float
    recovered: float
    waited: float
    read: float
    notes: list[str]
    unfinished: list[str]

    @property
    def rate(self) -> float:
        """The decisions a second in the last phase, as a share of the pushes.

        It depends on how many pushes or rounds of a drain fall into the phase.
        """
        return self.after / self.offered

    @property
    def lost(self) -> int:
        """The number of tasks and events that were lost."""
        return sum(each.rule in LOST for each in self.violations)

    @property
    def twice(self) -> int:
        """The number of all other violations: decided, held, read twice, or in the wrong order."""
        return len(self.violations) - self.lost


def run(scenario: Scenario, folder: Path, seconds: float) -> Outcome:
    """Runs a scenario whose fault lasts for `seconds`, with half of that after it, at most `LAST`.

    The phase before the fault has half the length of the last one.
    """
    last = min(seconds / 2, LAST)
    with scenario.site(folder) as site:
        marks = [time.monotonic()]
        time.sleep(last / 2)  # the length of the phase
        marks.append(time.monotonic())
        note = scenario.fault(site, seconds)
        marks.append(time.monotonic())
        settled = site.settle(marks[2], scenario.settle)
        marks.append(time.monotonic())
        time.sleep(last)  # the length of the phase
        marks.append(time.monotonic())
        unfinished = [*settled, *site.finish()]
    notes = [note] if note else []
    promises = Promises(
        # A drain takes several tasks of an identifier, and decides on them one after the other.
        one_at_a_time="drain" not in scenario.roles.values(),
        in_order=not scenario.options.fails,
        groups=GROUPS,
    )
    events = list(read(folder / "history"))
    return outcome(scenario.options.rate, promises, events, marks, site.soon, notes, unfinished)


def outcome(
    offered: float,
    promises: Promises,
    events: Sequence[Event],
    marks: Sequence[float],
    soon: float,
    notes: list[str],
    unfinished: list[str],
) -> Outcome:
    """Judges a history. `marks` are the moments between the phases. A task is to end within `soon` seconds."""
    history = History.of(events)
    claimants = [{(claim["owner"], claim["fence"]) for claim in each} for each in history.claims.values()]
    ends = {key: event["completed"] for key, event in history.tasks.items() if event["completed"] is not None}
    moments = sorted(ends.values())
    places = [bisect_left(moments, mark) for mark in marks]
    rates = [
        (last - first) / (until - since)
        for (first, last), (since, until) in zip(pairwise(places), pairwise(marks), strict=True)
    ]
    following = [marks[1], *moments[places[1] :]]
    reads = {event["task"]: event["ended"] for event in history.reads[GROUP]}
    return Outcome(
        pushed=sum(push["ended"] is not None for push in history.pushes.values()),
        decided=sum(len(effects) for effects in history.effects.values()),
        again=sum(len(each) > 1 for each in claimants) if claimants else None,
        behind=behind(history),
        offered=offered,
        violations=judge(events, promises),
        before=rates[0],
        during=rates[1],
        after=rates[3],
        recovery=handled(history, ends, marks[3], marks[4], soon),
        pause=max((second - first for first, second in pairwise(following)), default=0.0),
        recovered=marks[3] - marks[2],
        waited=longest(history, ends),
        read=longest(history, reads),
        notes=notes,
        unfinished=unfinished,
    )


def behind(history: History) -> int:
    """The number of tasks that were pushed while an earlier one of their identifier had not ended."""
    busy: dict[str, float] = {}  # until when, by the clock of the programs: the server's may have been set meanwhile
    count = 0
    for push in history.pushes.values():
        if push["ended"] is not None:
            count += push["ended"] < busy.get(push["identifier"], 0.0)
            for decision in history.decisions.get(push["task"], []):
                busy[push["identifier"]] = max(busy.get(push["identifier"], 0.0), decision["began"])
    return count


def handled(history: History, ends: Mapping[object, float], since: float, until: float, soon: float) -> float:
    """Of the tasks that were pushed in a phase, the share that ended within it, or `soon` seconds after it."""
    answered = (push for push in history.pushes.values() if push["ended"] is not None)
    pushed = [push["task"] for push in answered if since <= push["began"] < until]
    ended = sum(ends.get(task, inf) <= until + soon for task in pushed)
    return ended / len(pushed) if pushed else 0.0


def longest(history: History, ends: Mapping[object, float]) -> float:
    """The longest time from a push to an end, in seconds. A push without an answer may have been committed later."""
    answered = {task: push["ended"] for task, push in history.pushes.items() if push["ended"] is not None}
    return max((ends[task] - pushed for task, pushed in answered.items() if task in ends), default=0.0)
