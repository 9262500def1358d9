"""Judges the history of a queue: finds lost tasks, repeated effects, and tasks that were handed out wrongly.

The checker knows no product and connects to nothing. It reads events (`history.py`) and returns violations of rules:

    lost              a task that was pushed is not there at the end, or has not ended, or has lost its success
    invented          a task was handed out, or is there, that was not pushed
    twice there       the end shows a task more than once
    effects           a task that succeeded does not have exactly one effect, or another task has one
    superseded        a decision was accepted, and another owner has claimed the task after its claim
    unclaimed         a decision was accepted from an owner that had not claimed this attempt
    after success     a task was claimed again although it succeeds in an earlier claim
    ended twice       a task succeeded in two claims
    twice at once     two owners had the same task at once
    one at a time     two tasks of an identifier were held at once
    order             a task was handed out before an earlier one of its identifier, or before that one had ended
    skipped           a group has not read an event of the log
    not logged        a group has read an event that is not in the log
    read twice        a group has committed an event of the log twice
    read order        a group has read events of an identifier out of order

Every rule is cautious: calls overlap, and an answer may be missing. A violation is certain: no order of the calls that
fits their moments explains the history. So a history without violations does not prove that a queue is correct.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from operator import itemgetter

from tests.chaos.history import Event

SUCCEEDED = "SUCCEEDED"
SUCCESS = "SUCCESS"
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
    # Within an identifier. False if tasks are tried again later. Without one_at_a_time, also False if claims may get no
    # answer: a task that was handed out unseen would seem late.
    in_order: bool = True
    groups: frozenset[str] = frozenset()  # read the whole log, in addition to those that the history names


@dataclass(slots=True)
class History:
    """Events by kind."""

    pushes: dict[object, Event] = field(default_factory=dict)
    claims: dict[object, list[Event]] = field(default_factory=lambda: defaultdict(list))
    decisions: dict[object, list[Event]] = field(default_factory=lambda: defaultdict(list))
    tasks: dict[object, Event] = field(default_factory=dict)
    repeated: list[object] = field(default_factory=list)  # a task for each of its further rows at the end
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
                    history._add_task(event)
                case "effect":
                    history.effects[event["task"]].append(event)
                case "logged":
                    history.logged.append(event)
                case "read":
                    history.reads[event["group"]].append(event)
                case kind:
                    raise ValueError(f"unknown kind of event: {kind}")
        return history

    def _add_task(self, row: Event) -> None:
        if self.tasks.setdefault(row["task"], row) is not row:
            self.repeated.append(row["task"])


def judge(events: Iterable[Event], promises: Promises | None = None) -> list[Violation]:
    """Returns the violations of all rules."""
    history = History.of(events)
    return [violation for rule in RULES for violation in rule(history, promises or Promises())]


def _rule(
    check: Callable[[History, Promises], Iterator[Violation]],
) -> Callable[[History, Promises], Iterator[Violation]]:
    RULES.append(check)
    return check


_claimant = itemgetter("attempt", "owner", "fence")  # what tells the claims of a task apart


@_rule
def nothing_lost(history: History, _: Promises) -> Iterator[Violation]:
    """A push that is acknowledged, or that a later call proves, leaves a task that ends. Another push may leave one."""
    acknowledged = {task for task, push in history.pushes.items() if push["ended"] is not None}
    handled = _handled(history)
    for task in sorted((acknowledged | handled) - history.tasks.keys(), key=str):
        yield Violation("lost", f"task {task} was pushed and is not there")
    for task, found in history.tasks.items():
        if found["state"] != SUCCEEDED:
            reason = f": {found['error']}" if found.get("error") else ""
            yield Violation("lost", f"task {task} is still {found['state']}{reason}")
    for task in sorted((history.tasks.keys() | handled) - history.pushes.keys(), key=str):
        yield Violation("invented", f"task {task} was not pushed")
    for task in history.repeated:
        yield Violation("twice there", f"task {task}")


def _handled(history: History) -> set[object]:
    """The tasks that have an effect, or an answered claim or decision."""
    calls = chain(history.claims.values(), history.decisions.values())
    answered = {events[0]["task"] for events in calls if any(each["ended"] is not None for each in events)}
    return answered | history.effects.keys()


@_rule
def effects_once(history: History, _: Promises) -> Iterator[Violation]:
    """A task has one effect if it succeeded, and otherwise none."""
    for task, found in history.tasks.items():
        count = len(history.effects.get(task, ()))
        if count != int(found["state"] == SUCCEEDED):
            yield Violation("effects", f"task {task} is {found['state']} and has {count} effects")
    for task in sorted(history.effects.keys() - history.tasks.keys(), key=str):
        yield Violation("effects", f"task {task} is not there and has an effect")


@_rule
def successes_kept(history: History, _: Promises) -> Iterator[Violation]:
    """Each success that was acknowledged has left an effect of its own."""
    for task, decisions in history.decisions.items():
        left = Counter(map(_claimant, history.effects.get(task, ())))
        left.subtract(_claimant(each) for each in decisions if _acknowledged_success(each))
        for (attempt, owner, _fence), count in left.items():
            if count < 0:
                yield Violation("lost", f"task {task}, attempt {attempt}, by {owner}: no effect of the success")


def _acknowledged_success(decision: Event) -> bool:
    return decision["ended"] is not None and decision["result"] == SUCCESS


@_rule
def decisions_by_their_owner(history: History, _: Promises) -> Iterator[Violation]:
    """A decision is accepted only from the owner of the latest claim."""
    for task in history.decisions:
        claims = history.claims.get(task, [])
        for decision in _accepted(history, task):
            own = [
                claim for claim in claims if _claimant(claim) == _claimant(decision) and _may_precede(claim, decision)
            ]
            if not own:
                yield Violation("unclaimed", f"task {task}, attempt {decision['attempt']}, by {decision['owner']}")
            for claim in claims:
                if own and _supersedes(claim, own, decision):
                    detail = f"task {task}: {decision['owner']} after the claim of {claim['owner']}"
                    yield Violation("superseded", detail)


def _accepted(history: History, task: object) -> Iterator[Event]:
    """The decisions on a task that were certainly committed: with an answer, or shown by their effect."""
    by_claimant: dict[object, list[Event]] = defaultdict(list)
    for decision in history.decisions.get(task, ()):
        by_claimant[_claimant(decision)].append(decision)
    shown = set(map(_claimant, history.effects.get(task, ())))
    for claimant, decisions in by_claimant.items():
        answered = [each for each in decisions if each["ended"] is not None]
        if answered:
            yield from answered
        elif claimant in shown:
            # Any of the calls may have left the effect. What the first could not do, the others could not do either.
            yield decisions[0]


def _may_precede(claim: Event, decision: Event) -> bool:
    return decision["ended"] is None or bool(claim["began"] <= decision["ended"])


def _supersedes(claim: Event, own: Sequence[Event], decision: Event) -> bool:
    """Whether a claim certainly took a task from the owner of a decision, after its own claims, before it decided."""
    if claim["ended"] is None or claim["ended"] >= decision["began"]:
        return False
    same_owner = claim["owner"] == decision["owner"]
    if claim["attempt"] > decision["attempt"] or (same_owner and claim["fence"] > decision["fence"]):
        return True
    if same_owner and claim["fence"] == decision["fence"]:
        return False
    return all(each["ended"] is not None and each["ended"] < claim["began"] for each in own)


@_rule
def success_is_final(history: History, _: Promises) -> Iterator[Violation]:
    """A task that succeeds is not claimed again, and does not succeed in another claim or after one."""
    for task in dict.fromkeys([*history.decisions, *history.effects]):
        acknowledged = [each for each in history.decisions.get(task, ()) if _acknowledged_success(each)]
        succeeded = set(map(_claimant, [*acknowledged, *history.effects.get(task, ())]))
        if len(succeeded) > 1:
            yield Violation("ended twice", f"task {task}: {len(succeeded)} claims")
        end = min((each["ended"] for each in acknowledged), default=inf)
        attempt = min((each[0] for each in succeeded), default=inf)
        claims = history.claims.get(task, [])
        own = {claimant: _last_answer(claims, claimant) for claimant in succeeded}
        for claim in (each for each in claims if each["ended"] is not None):
            # The next attempt contradicts a success at any moment: it shows that the attempt before has failed.
            if claim["began"] > end or claim["attempt"] > attempt:
                yield Violation("after success", f"task {task}, attempt {claim['attempt']}, by {claim['owner']}")
                continue
            # Wherever the decision was within its call: it came after this claim, or this claim came after the success.
            for claimant, answered in own.items():
                if claimant != _claimant(claim) and claim["began"] > answered:
                    yield Violation("superseded", f"task {task}: {claimant[1]}, and the claim of {claim['owner']}")


def _last_answer(claims: Iterable[Event], claimant: object) -> float:
    """The moment since which a claimant certainly has claimed nothing more: infinite if a claim may still be open."""
    answers = [claim["ended"] for claim in claims if _claimant(claim) == claimant]
    return inf if not answers or None in answers else max(answers)


@dataclass(frozen=True, slots=True)
class Hold:
    """The time for which a claim certainly held its task: from its answer to its decision or the end of its lease."""

    task: object
    owner: tuple[str, int]  # name and fence
    begin: float
    end: float


def _holds(history: History, task: object) -> Iterator[Hold]:
    """The holds of a task. A call for its decision may end a hold as soon as the call begins."""
    claims = history.claims[task]
    for claim in (each for each in claims if each["ended"] is not None):
        asked = [each["began"] for each in history.decisions.get(task, ()) if _claimant(each) == _claimant(claim)]
        # A later registration of the name takes the task over, and may end it.
        taken_over = [
            each["began"] for each in claims if each["owner"] == claim["owner"] and each["fence"] > claim["fence"]
        ]
        end = min([claim["until"], *asked, *taken_over])
        if claim["ended"] < end:
            yield Hold(task, (claim["owner"], claim["fence"]), claim["ended"], end)


def _overlaps(holds: Iterable[Hold]) -> Iterator[tuple[Hold, Hold]]:
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
    """A task is handed out after all tasks of its identifier that were pushed before, and after the end of those."""
    if not promises.in_order:
        return

    def turn(push: Event) -> float:
        return _earliest_turn(history, push["task"], promises)

    by_identifier: dict[str, list[Event]] = defaultdict(list)
    for push in history.pushes.values():
        by_identifier[push["identifier"]].append(push)
    for identifier, pushes in by_identifier.items():
        for earlier, later in _greatest_before(pushes, turn):
            if _handed_out(history, later["task"]) < turn(earlier):
                yield Violation("order", f"identifier {identifier}: task {later['task']} before {earlier['task']}")


def _earliest_turn(history: History, task: object, promises: Promises) -> float:
    """The earliest moment at which the next task of the identifier can have been handed out."""
    claimed: float = min((each["began"] for each in history.claims.get(task, ())), default=-inf)
    if not promises.one_at_a_time:
        return claimed
    # A task whose lease has lapsed keeps the turn until it has succeeded.
    ended = (each["began"] for each in _accepted(history, task) if each["result"] == SUCCESS)
    return max(claimed, min(ended, default=-inf))


def _handed_out(history: History, task: object) -> float:
    """The latest moment at which a task was handed out first: its first answer to a claim."""
    answers = (each["ended"] for each in history.claims.get(task, ()) if each["ended"] is not None)
    return min(answers, default=inf)


def _greatest_before(calls: Iterable[Event], value: Callable[[Event], float]) -> Iterator[tuple[Event, Event]]:
    """Pairs each call with that of the greatest value among the calls that were answered before it began."""
    waiting = sorted(calls, key=itemgetter("began"))
    answered = sorted((each for each in waiting if each["ended"] is not None), key=itemgetter("ended"))
    greatest: tuple[float, Event] | None = None
    count = 0
    for call in waiting:
        while count < len(answered) and answered[count]["ended"] < call["began"]:
            valued = (value(answered[count]), answered[count])
            greatest = valued if greatest is None else max(greatest, valued, key=itemgetter(0))
            count += 1
        if greatest is not None:
            yield greatest[1], call


@_rule
def log_read_once(history: History, promises: Promises) -> Iterator[Violation]:
    """Each group reads each event of the log once, and those of an identifier in order."""
    logged = {event["position"]: event for event in history.logged}
    for group in sorted(history.reads.keys() | promises.groups):
        events = history.reads.get(group, [])
        read = Counter(event["position"] for event in events if event["ended"] is not None)
        asked = {event["position"] for event in events}
        for position in logged:
            if position not in asked:
                yield Violation("skipped", f"group {group}: position {position}")
            elif read[position] > 1:
                yield Violation("read twice", f"group {group}: position {position}")
        for event in events:
            if event["position"] not in logged or logged[event["position"]]["task"] != event["task"]:
                yield Violation("not logged", f"group {group}: task {event['task']} at position {event['position']}")
        yield from _read_order(group, events, logged)


def _read_order(group: str, events: Iterable[Event], logged: Mapping[object, Event]) -> Iterator[Violation]:
    by_identifier: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event["ended"] is not None and event["position"] in logged:
            by_identifier[logged[event["position"]]["identifier"]].append(event)
    for identifier, reads in by_identifier.items():
        for earlier, later in _greatest_before(reads, itemgetter("position")):
            if later["position"] < earlier["position"]:
                yield Violation("read order", f"group {group}, identifier {identifier}: {later['position']}")
