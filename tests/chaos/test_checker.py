"""The checker finds each kind of error in histories, and none that is not certain."""

import pytest

from tests.chaos import checker
from tests.chaos.checker import Promises, judge
from tests.chaos.history import Event

CLAIMANT = ("task", "attempt", "owner", "fence")


def push(task: str, began: float, ended: float | None, identifier: str = "a") -> Event:
    return {"kind": "push", "began": began, "ended": ended, "task": task, "identifier": identifier}


def claim(
    task: str, attempt: int, owner: str, began: float, ended: float | None, until: float, fence: int = 1
) -> Event:
    row = {"task": task, "identifier": "a", "attempt": attempt, "owner": owner, "fence": fence}
    return {"kind": "claim", "began": began, "ended": ended, "until": until, **row}


def decision(of: Event, began: float, ended: float | None, result: str = "SUCCESS") -> Event:
    return {
        "kind": "decision",
        "began": began,
        "ended": ended,
        "result": result,
        **{name: of[name] for name in CLAIMANT},
    }


def effect(of: Event) -> Event:
    return {"kind": "effect", "began": 100.0, "ended": 100.0, **{name: of[name] for name in CLAIMANT}}


def left(task: str, state: str = "SUCCEEDED") -> Event:
    return {"kind": "task", "began": 100.0, "ended": 100.0, "task": task, "identifier": "a", "state": state}


def logged(position: int, task: str) -> Event:
    return {"kind": "logged", "began": 100.0, "ended": 100.0, "position": position, "task": task, "identifier": "a"}


def read_by(group: str, position: int, task: str, began: float, ended: float) -> Event:
    return {"kind": "read", "began": began, "ended": ended, "group": group, "position": position, "task": task}


ANY_ORDER = Promises(in_order=False)
PUSHED = [push("A", 0.0, 0.1), push("B", 0.2, 0.3), push("C", 0.4, 0.5)]
ONE = [PUSHED[0], left("A")]
OWN, OTHER = claim("A", 1, "w1", 1, 2, 7), claim("A", 1, "w2", 8, 9, 14, fence=2)
NEXT = claim("A", 2, "w2", 8, 9, 14)
EARLY = [*ONE, OWN, decision(OWN, 3, 4), effect(OWN)]
LATE = [*ONE, OWN, decision(OWN, 10, 11), effect(OWN)]
UNANSWERED = push("A", 0.0, None)
# Two claims at moments that are not known, and the next attempt
VAGUE, VAGUE_OTHER = claim("A", 1, "w1", 1, 9, 2), claim("A", 1, "w2", 1, 9, 2, fence=2)
BOTH = [*ONE, VAGUE, VAGUE_OTHER, decision(VAGUE, 3, 20), decision(VAGUE_OTHER, 3, 20)]
VAGUE_NEXT = claim("A", 2, "w2", 1, 9, 2, fence=2)
# Claims of three tasks in another order than their pushes
DISORDERED = [claim("B", 1, "w1", -50, 20, 20), claim("C", 1, "w2", 2, 3, 3), claim("A", 1, "w2", 5, 6, 6)]
DISORDERED_ENDED = [each for of in DISORDERED for each in (of, decision(of, 20, None), effect(of), left(of["task"]))]
# B is handed out after the lease of A has lapsed, and before the end of A
OVERTAKING, AGAIN = claim("B", 1, "w2", 8, 9, 14, fence=2), claim("A", 1, "w2", 12, 13, 18, fence=2)
OVERTAKEN = [*PUSHED[:2], left("A"), left("B"), OWN, OVERTAKING, AGAIN, decision(OVERTAKING, 10, 11)]
OVERTAKEN += [effect(OVERTAKING), decision(AGAIN, 14, 15), effect(AGAIN)]
# A claim at an unknown moment holds its task from its end to the end of its lease
UNKNOWN = claim("A", 1, "worker", -50, 10, 14)
UNKNOWN_ENDED = [*ONE, decision(UNKNOWN, 13, None), effect(UNKNOWN)]
BESIDE = claim("B", 1, "w1", 11, 12, 17)
BESIDE_ENDED = [push("B", 0.05, 0.3), left("B"), BESIDE, decision(BESIDE, 13, 14), effect(BESIDE)]
TWO_READ = [logged(1, "1"), logged(2, "2"), read_by("r", 2, "2", 1, 3)]

# What happens, what was promised, the events, and the rules that they break.
HISTORIES: list[tuple[str, Promises | None, list[Event], set[str]]] = [
    ("an attempt succeeds", None, EARLY, set()),
    ("another owner claims before the decision", None, [*LATE, OTHER], {"superseded"}),
    (
        "it claims, and the first claims again",
        None,
        [*LATE, OTHER, claim("A", 1, "w1", 9.2, 9.5, 14)],
        {"twice at once"},
    ),
    ("the two claims overlap", None, [*LATE, {**OTHER, "began": 1.5}], set()),
    ("a claim of the attempt follows its success", None, [*EARLY, OTHER], {"after success"}),
    ("the next attempt follows a success", None, [*EARLY, NEXT], {"after success"}),
    (
        "an acknowledged success is lost",
        None,
        [*ONE, OWN, decision(OWN, 3, 4), OTHER, decision(OTHER, 10, 11), effect(OTHER)],
        {"lost", "after success", "ended twice"},
    ),
    (
        "a failure is tried again",
        None,
        [*ONE, OWN, decision(OWN, 3, 4, "RETRY"), NEXT, decision(NEXT, 10, 11), effect(NEXT)],
        set(),
    ),
    ("a push without an answer leaves nothing", None, [UNANSWERED], set()),
    ("a claim of its task is answered", None, [UNANSWERED, OWN], {"lost"}),
    ("an effect has no task", None, [UNANSWERED, effect(OWN)], {"lost", "effects"}),
    ("a task is claimed that was not pushed", None, [OWN], {"lost", "invented"}),
    ("a task is lost", None, [PUSHED[0]], {"lost"}),
    ("a task never ends", None, [PUSHED[0], left("A", "READY")], {"lost"}),
    ("a task is there that was not pushed", None, EARLY[1:], {"invented"}),
    ("a success has no effect", None, EARLY[:-1], {"effects", "lost"}),
    ("a success has two effects", None, [*EARLY, EARLY[-1]], {"effects"}),
    ("another owner decides", None, [*ONE, OTHER, decision(OWN, 10, 11), effect(OWN)], {"unclaimed"}),
    ("a task is there twice", None, [*EARLY, left("A")], {"twice there"}),
    ("two claims succeed", None, [*BOTH, effect(VAGUE), effect(VAGUE_OTHER)], {"ended twice", "effects"}),
    (
        "the next attempt is claimed at any moment, and the first succeeds",
        None,
        [*ONE, VAGUE, VAGUE_NEXT, decision(VAGUE, 3, None), effect(VAGUE)],
        {"after success"},
    ),
    ("three tasks are handed out in another order", None, [*PUSHED, *DISORDERED_ENDED], {"order"}),
    (
        "their pushes overlap",
        None,
        [PUSHED[0], {**PUSHED[1], "ended": None}, {**PUSHED[2], "began": 0.05}, *DISORDERED_ENDED],
        set(),
    ),
    ("a task overtakes one whose lease has lapsed", None, OVERTAKEN, {"order"}),
    ("no order is promised", ANY_ORDER, OVERTAKEN, set()),
    ("a group reads nothing", Promises(groups=frozenset({"r"})), [*EARLY, logged(1, "A")], {"skipped"}),
    ("a group reads an event that is not logged", None, [*EARLY, read_by("r", 1, "A", 50, 51)], {"not logged"}),
    ("it reads another event", None, [*EARLY, read_by("r", 1, "A", 50, 51), logged(1, "B")], {"not logged"}),
    ("it reads that event", None, [*EARLY, read_by("r", 1, "A", 50, 51), logged(1, "A")], set()),
    ("it reads it twice", None, [*EARLY, *[read_by("r", 1, "A", 50, 51)] * 2, logged(1, "A")], {"read twice"}),
    ("two reads overlap", None, [*TWO_READ, read_by("r", 1, "1", 2, 4)], set()),
    ("a read follows one of a later event", None, [*TWO_READ, read_by("r", 1, "1", 3.5, 4)], {"read order"}),
    (
        "a claim follows one at an unknown moment",
        None,
        [*UNKNOWN_ENDED, UNKNOWN, claim("A", 1, "w1", 11, 12, 17)],
        {"superseded", "twice at once"},
    ),
    (
        "another task of the identifier is held meanwhile",
        None,
        [*UNKNOWN_ENDED, UNKNOWN, *BESIDE_ENDED],
        {"one at a time"},
    ),
    ("after the end of the lease", None, [*UNKNOWN_ENDED, {**UNKNOWN, "until": 9}, *BESIDE_ENDED], set()),
]


def test_each_rule_has_a_history_that_breaks_it() -> None:
    lines = [line[4:] for line in (checker.__doc__ or "").splitlines() if line.startswith("    ")]
    named = {line.split("  ")[0] for line in lines if not line.startswith(" ")}
    assert set().union(*(rules for *_, rules in HISTORIES)) == named


@pytest.mark.parametrize(("what", "promises", "events", "rules"), HISTORIES, ids=[each[0] for each in HISTORIES])
def test_a_history_breaks_the_rules_that_it_certainly_breaks_and_no_others(
    what: str, promises: Promises | None, events: list[Event], rules: set[str]
) -> None:
    assert {violation.rule for violation in judge(events, promises)} == rules, what
