"""Judges the history of a queue: finds lost tasks, repeated effects, and tasks that were handed out wrongly.

The checker knows no product and connects to nothing. It reads events (`history.py`) and returns violations of rules:

    lost              a task that was pushed is not there at the end, or has not ended
    invented          a task is there that was not pushed
    effects           a task that succeeded does not have exactly one effect, or another task has one
    superseded        a decision was accepted although another owner had claimed the task after its claim
    unclaimed         a decision was accepted from an owner that had not claimed this attempt
    twice at once     two owners had the same task at once
    one at a time     two tasks of an identifier were held at once
    order             a task was handed out before an earlier one of its identifier
    skipped           a group has not read an event of the log
    read twice        a group has committed an event of the log twice
    read order        a group has read events of an identifier out of order

Every rule is cautious: calls overlap, and an answer may be missing. A violation is certain: no order of the calls that
fits their moments explains the history. So a history without violations does not prove that a queue is correct.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter

from tests.chaos.history import Event

SUCCEEDED = "SUCCEEDED"
RULES: list[Callable[["History", "Promises"], Iterator["Violation"]]] = []


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a history breaks."""

    rule: str
    detail: str


@dataclass(frozen=True, slots=True)
class Promises:
    """What the run asked of the queue."""

    one_at_a_time: bool = True  # of an identifier
    in_order: bool = True  # within an identifier; False if tasks are tried again later
    ended: frozenset[str] = frozenset({SUCCEEDED})  # the states in which a task may be at the end


@dataclass(slots=True)
class History:
    """Events by kind."""

    pushes: dict[object, Event] = field(default_factory=dict)
    claims: dict[object, list[Event]] = field(default_factory=lambda: defaultdict(list))
    decisions: dict[object, list[Event]] = field(default_factory=lambda: defaultdict(list))
    tasks: dict[object, Event] = field(default_factory=dict)
    effects: dict[object, list[Event]] = field(default_factory=lambda: defaultdict(list))
    logged: list[Event] = field(default_factory=list)
    reads: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, events: Iterable[Event]) -> "History":
        """Sorts events by kind, and those of each task by time."""
        history = cls()
        for event in sorted(events, key=itemgetter("began")):
            match event["kind"]:
                case "push":
                    if event["ended"] is not None or event["task"] not in history.pushes:
                        history.pushes[event["task"]] = event
                case "claim":
                    history.claims[event["task"]].append(event)
                case "decision":
                    history.decisions[event["task"]].append(event)
                case "task":
                    history.tasks[event["task"]] = event
                case "effect":
                    history.effects[event["task"]].append(event)
                case "logged":
                    history.logged.append(event)
                case "read":
                    history.reads[event["group"]].append(event)
                case kind:
                    raise ValueError(f"unknown kind of event: {kind}")
        return history


def judge(events: Iterable[Event], promises: Promises | None = None) -> list[Violation]:
    """Returns the violations of all rules."""
    history = History.of(events)
    return [violation for rule in RULES for violation in rule(history, promises or Promises())]


def _rule(
    check: Callable[[History, Promises], Iterator[Violation]],
) -> Callable[[History, Promises], Iterator[Violation]]:
    RULES.append(check)
    return check


@_rule
def nothing_lost(history: History, promises: Promises) -> Iterator[Violation]:
    """An acknowledged push leaves a task that ends. A push without an answer may leave one."""
    for task, push in history.pushes.items():
        found = history.tasks.get(task)
        if found is None and push["ended"] is not None:
            yield Violation("lost", f"task {task} was pushed and is not there")
        elif found is not None and found["state"] not in promises.ended:
            reason = f": {found['error']}" if found.get("error") else ""
            yield Violation("lost", f"task {task} is still {found['state']}{reason}")
    for task in history.tasks.keys() - history.pushes.keys():
        yield Violation("invented", f"task {task} was not pushed")


@_rule
def effects_once(history: History, _: Promises) -> Iterator[Violation]:
    """A task has one effect if it succeeded, and otherwise none."""
    for task, found in history.tasks.items():
        expected = int(found["state"] == SUCCEEDED)
        if len(history.effects[task]) != expected:
            yield Violation("effects", f"task {task} is {found['state']} and has {len(history.effects[task])} effects")


@_rule
def decisions_by_their_owner(history: History, _: Promises) -> Iterator[Violation]:
    """A decision is accepted only from the owner of the latest claim."""
    for task, decisions in history.decisions.items():
        for decision in (each for each in decisions if _accepted(history, each)):
            own = [claim for claim in history.claims[task] if _same_attempt(claim, decision)]
            if not own:
                yield Violation("unclaimed", f"task {task}, attempt {decision['attempt']}, by {decision['owner']}")
            for claim in history.claims[task]:
                later = claim["ended"] is not None and claim["ended"] < decision["began"]
                if later and any(_supersedes(claim, each) for each in own):
                    detail = f"task {task}: {decision['owner']} after the claim of {claim['owner']}"
                    yield Violation("superseded", detail)


def _accepted(history: History, decision: Event) -> bool:
    """Whether a decision was committed: it has an answer, or left its effect."""
    effects = history.effects[decision["task"]]
    return decision["ended"] is not None or any(_same_attempt(effect, decision) for effect in effects)


def _same_attempt(claim: Event, decision: Event) -> bool:
    return all(claim[name] == decision[name] for name in ("attempt", "owner", "fence"))


def _supersedes(claim: Event, earlier: Event) -> bool:
    """Whether a claim takes a task from the owner of an earlier one: by another attempt, or a later registration."""
    if claim["attempt"] == earlier["attempt"]:
        return bool(claim["owner"] == earlier["owner"] and claim["fence"] > earlier["fence"])
    return bool(claim["attempt"] > earlier["attempt"])


@dataclass(frozen=True, slots=True)
class Hold:
    """The time for which a claim certainly held its task: from its answer to its decision or the end of its lease."""

    task: object
    owner: tuple[str, int]  # name and fence
    begin: float
    end: float


def _holds(history: History, task: object) -> list[Hold]:
    """The holds of a task. A call for its decision may end a hold as soon as the call begins."""
    holds = []
    for claim in history.claims[task]:
        if claim["ended"] is not None:
            asked = [each["began"] for each in history.decisions[task] if _same_attempt(claim, each)]
            # A later registration of the name takes the task over, and may end it.
            taken_over = [
                each["began"]
                for each in history.claims[task]
                if each["owner"] == claim["owner"] and each["fence"] > claim["fence"]
            ]
            end = min([claim["until"], *asked, *taken_over])
            holds.append(Hold(task, (claim["owner"], claim["fence"]), claim["ended"], end))
    return [hold for hold in holds if hold.begin < hold.end]


def _overlaps(holds: Sequence[Hold]) -> Iterator[tuple[Hold, Hold]]:
    """Pairs of holds that certainly overlap: each hold with the one before it that lasts longest."""
    longest: Hold | None = None
    for hold in sorted(holds, key=lambda each: each.begin):
        if longest is not None and hold.begin < longest.end:
            yield longest, hold
        if longest is None or hold.end > longest.end:
            longest = hold


@_rule
def one_owner_at_a_time(history: History, _: Promises) -> Iterator[Violation]:
    """No two owners hold the same task."""
    for task in history.claims:
        for first, second in _overlaps(_holds(history, task)):
            if first.owner[0] != second.owner[0]:  # a later registration of a name takes over its tasks
                yield Violation("twice at once", f"task {task}: {first.owner[0]} and {second.owner[0]}")


@_rule
def one_task_at_a_time(history: History, promises: Promises) -> Iterator[Violation]:
    """No two tasks of an identifier are held at once."""
    if not promises.one_at_a_time:
        return
    by_identifier: dict[str, list[Hold]] = defaultdict(list)
    for task, claims in history.claims.items():
        by_identifier[claims[0]["identifier"]] += _holds(history, task)
    for identifier, holds in by_identifier.items():
        for first, second in _overlaps(holds):
            if first.task != second.task:
                yield Violation("one at a time", f"identifier {identifier}: tasks {first.task} and {second.task}")


@_rule
def tasks_in_order(history: History, promises: Promises) -> Iterator[Violation]:
    """The first claim of a task follows those of all tasks of its identifier that were pushed before."""
    if not promises.in_order:
        return
    by_identifier: dict[str, list[Event]] = defaultdict(list)
    for push in history.pushes.values():
        if push["ended"] is not None:
            by_identifier[push["identifier"]].append(push)
    for identifier, pushes in by_identifier.items():
        for earlier, later in pairwise(sorted(pushes, key=itemgetter("ended"))):
            first, second = (history.claims[push["task"]] for push in (earlier, later))
            if not first or not second or earlier["ended"] > later["began"]:
                continue
            if second[0]["ended"] is not None and second[0]["ended"] < first[0]["began"]:
                yield Violation("order", f"identifier {identifier}: task {later['task']} before {earlier['task']}")


@_rule
def log_read_once(history: History, _: Promises) -> Iterator[Violation]:
    """Each group reads each event of the log once, and those of an identifier in order."""
    positions = [event["position"] for event in history.logged]
    for group, events in history.reads.items():
        read = Counter(event["position"] for event in events if event["ended"] is not None)
        asked = {event["position"] for event in events}
        for position in positions:
            if position not in asked:
                yield Violation("skipped", f"group {group}: position {position}")
            elif read[position] > 1:
                yield Violation("read twice", f"group {group}: position {position}")
        yield from _read_order(group, events, {event["task"]: event["identifier"] for event in history.logged})


def _read_order(group: str, events: Sequence[Event], identifiers: dict[object, str]) -> Iterator[Violation]:
    latest: dict[str, Event] = {}
    for event in (each for each in events if each["ended"] is not None):
        identifier = identifiers[event["task"]]
        before = latest.get(identifier)
        if before is not None and event["position"] < before["position"] and event["ended"] > before["ended"]:
            yield Violation("read order", f"group {group}, identifier {identifier}: {event['position']}")
        latest[identifier] = event
