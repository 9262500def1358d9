"""The checker accepts histories of a correct queue, and finds each kind of error that is planted into them."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos import checker
from tests.chaos.checker import Promises, judge
from tests.chaos.history import Event, Recorder, read

LEASE = 5.0
Plant = Callable[[list[Event]], None]


class Scribe:
    """Writes the history of calls that follow each other."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 -- a history that can be repeated
        self.events: list[Event] = []
        self.clock = 0.0

    def call(self, kind: str, *, answered: bool = True, **row: object) -> Event:
        """Writes a call."""
        began = self.clock + self.chance.random()
        self.clock = began + self.chance.random()
        event: Event = {"kind": kind, "began": began, "ended": self.clock if answered else None, **row}
        self.events.append(event)
        return event

    def handle(self, task: int, identifier: object) -> None:
        """Writes the claims of a task, of which the last is followed by its decision and its effect."""
        chance, attempt, fence, owner, restarted = self.chance, 0, 0, "", False
        while True:
            if not restarted:
                attempt, owner = attempt + 1, f"worker-{chance.randrange(3)}"
            fence += 1
            claimant = {"task": task, "attempt": attempt, "owner": owner, "fence": fence}
            claim = self.call("claim", answered=chance.random() > 0.1, identifier=identifier, **claimant)
            claim["until"] = claim["began"] + LEASE
            fate = chance.random() if claim["ended"] is not None else 1.0
            restarted = 0.7 < fate <= 0.8  # the worker is killed, starts again, and takes its task over
            if fate > 0.8:  # the worker is killed, and the lease lapses
                self.clock = claim["until"]
            elif not restarted:
                self.call("decision", answered=fate > 0.1, result="SUCCESS", **claimant)
                self.events.append({"kind": "effect", "began": self.clock, "ended": self.clock, **claimant})
                return


def correct(seed: int) -> list[Event]:
    """The history of a correct queue: three workers, of which some end with tasks in hand, and one group of readers."""
    scribe = Scribe(seed)
    chance = scribe.chance
    logged: list[Event] = []
    waiting = {}
    for task in range(1, 61):
        push = scribe.call("push", answered=chance.random() > 0.1, task=task, identifier=f"id-{chance.randrange(5)}")
        if push["ended"] is not None or chance.random() > 0.5:
            waiting[task] = push["identifier"]
    for task, identifier in waiting.items():
        scribe.handle(task, identifier)
        logged.append({"position": len(logged) + 1, "task": task, "identifier": identifier})
    for event in logged:
        scribe.call("read", group="readers", position=event["position"], task=event["task"])
    for task, identifier in waiting.items():
        scribe.call("task", task=task, identifier=identifier, state="SUCCEEDED")
    for event in logged:
        scribe.call("logged", **event)
    return scribe.events


def only(events: list[Event], kind: str, **row: object) -> Iterator[Event]:
    """The answered events of a kind with these values."""
    for event in events:
        if event["kind"] == kind and event["ended"] is not None and row.items() <= event.items():
            yield event


def remove_a_task(events: list[Event]) -> None:
    """The queue forgets a task that was pushed."""
    task = next(only(events, "push"))["task"]
    events[:] = [event for event in events if event["kind"] in ("push", "logged", "read") or event["task"] != task]


def leave_a_task(events: list[Event]) -> None:
    """A task never ends."""
    task = next(only(events, "task"))
    task["state"] = "READY"
    events[:] = [event for event in events if event["kind"] != "effect" or event["task"] != task["task"]]


def invent_a_task(events: list[Event]) -> None:
    """A task is there that was never pushed."""
    task = next(only(events, "task"))["task"]
    events[:] = [event for event in events if event["kind"] != "push" or event["task"] != task]


def repeat_an_effect(events: list[Event]) -> None:
    """A decision is committed twice."""
    events.append(next(only(events, "effect")).copy())


def drop_an_effect(events: list[Event]) -> None:
    """A decision is committed without its effect."""
    events.remove(next(only(events, "effect")))


def decide_after_another_claim(events: list[Event]) -> None:
    """An owner whose lease has lapsed decides, after another owner has claimed the task."""
    lapsed = next(
        claim for claim in only(events, "claim", attempt=1) if any(only(events, "claim", task=claim["task"], attempt=2))
    )
    later = next(only(events, "claim", task=lapsed["task"], attempt=2))
    claimant = {name: lapsed[name] for name in ("task", "attempt", "owner", "fence")}
    moment = later["ended"] + 0.001
    events.append({"kind": "decision", "began": moment, "ended": moment + 0.001, "result": "SUCCESS", **claimant})


def decide_without_a_claim(events: list[Event]) -> None:
    """An owner decides on a task that it has not claimed."""
    next(only(events, "decision"))["owner"] = "stranger"


def hand_out_twice(events: list[Event]) -> None:
    """The same attempt goes to two owners."""
    claim = next(claim for claim in only(events, "claim") if held(events, claim))
    moment = claim["ended"] + 1e-9
    events.append({**claim, "owner": "other", "began": moment, "ended": moment, "until": moment + LEASE})


def held(events: list[Event], claim: Event) -> bool:
    """Whether the owner of a claim has the task for some time."""
    asked = [
        event["began"]
        for event in events
        if event["kind"] == "decision" and event["task"] == claim["task"] and event["attempt"] == claim["attempt"]
    ]
    return bool(min([*asked, claim["until"]]) > claim["ended"] + 1e-6)


def hand_out_a_second_of_the_identifier(events: list[Event]) -> None:
    """A task is handed out while an earlier one of its identifier is held."""
    claim = next(
        claim
        for claim in only(events, "claim")
        if held(events, claim)
        and any(only(events, "claim", identifier=claim["identifier"], attempt=1))
        and claim["task"] > 10
    )
    other = next(each for each in only(events, "claim", identifier=claim["identifier"]) if each["task"] > claim["task"])
    moment = claim["ended"] + 1e-9
    other.update(began=moment, ended=moment)


def hand_out_in_another_order(events: list[Event]) -> None:
    """Two tasks of an identifier are handed out in the reverse order of their pushes."""
    single = [
        push
        for push in only(events, "push")
        if len([event for event in events if event["kind"] == "claim" and event["task"] == push["task"]]) == 1
        and any(only(events, "decision", task=push["task"]))
    ]
    first, second = next(
        (one, two)
        for one in single
        for two in single
        if one["task"] < two["task"] and one["identifier"] == two["identifier"]
    )
    names = {first["task"]: second["task"], second["task"]: first["task"]}
    for event in events:
        if event["kind"] in ("claim", "decision", "effect"):
            event["task"] = names.get(event["task"], event["task"])


def skip_an_event(events: list[Event]) -> None:
    """A group never reads an event of the log."""
    events.remove(next(only(events, "read", position=17)))


def read_an_event_again(events: list[Event]) -> None:
    """A group commits an event of the log twice."""
    events.append(next(only(events, "read", position=17)).copy())


def read_out_of_order(events: list[Event]) -> None:
    """A group reads two events of an identifier in the reverse order."""
    reads = list(only(events, "read"))
    of = {event["task"]: event["identifier"] for event in only(events, "logged")}
    first = reads[0]
    second = next(event for event in reads[1:] if of[event["task"]] == of[first["task"]])
    for name in ("position", "task"):
        first[name], second[name] = second[name], first[name]


PLANTED: list[tuple[Plant, set[str]]] = [
    (remove_a_task, {"lost"}),
    (leave_a_task, {"lost"}),
    (invent_a_task, {"invented"}),
    (repeat_an_effect, {"effects"}),
    (drop_an_effect, {"effects"}),
    (decide_after_another_claim, {"superseded"}),
    (decide_without_a_claim, {"unclaimed"}),
    (hand_out_twice, {"twice at once"}),
    (hand_out_a_second_of_the_identifier, {"one at a time"}),
    (hand_out_in_another_order, {"order"}),
    (skip_an_event, {"skipped"}),
    (read_an_event_again, {"read twice"}),
    (read_out_of_order, {"read order"}),
]


@pytest.mark.parametrize("seed", range(50))
def test_a_history_of_a_correct_queue_has_no_violation(seed: int) -> None:
    assert judge(correct(seed)) == []


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("plant", "rules"), PLANTED, ids=lambda value: getattr(value, "__name__", ""))
def test_the_checker_finds_a_planted_error(plant: Plant, rules: set[str], seed: int) -> None:
    events = correct(seed)
    plant(events)
    assert rules <= {violation.rule for violation in judge(events)}


def test_each_rule_has_a_planted_error() -> None:
    lines = [line[4:] for line in (checker.__doc__ or "").splitlines() if line.startswith("    ")]
    named = {line.split("  ")[0] for line in lines if not line.startswith(" ")}
    assert {rule for _, rules in PLANTED for rule in rules} == named


def test_a_queue_that_promises_less_is_judged_by_less() -> None:
    events = correct(0)
    hand_out_in_another_order(events)
    assert "order" not in {each.rule for each in judge(events, Promises(in_order=False))}


def test_half_a_line_of_a_killed_process_is_left_out(tmp_path: Path) -> None:
    with Recorder(tmp_path, "worker") as recorder:
        recorder.write("push", 1.0, 2.0, [{"task": 1, "identifier": "a"}])
    with (tmp_path / "worker.jsonl").open("a") as file:
        file.write('{"kind": "push", "beg')
    assert list(read(tmp_path)) == [{"kind": "push", "began": 1.0, "ended": 2.0, "task": 1, "identifier": "a"}]
