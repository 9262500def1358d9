"""The checker accepts histories of a correct queue, and finds each kind of error that is planted into them."""

import heapq
import random
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, permutations
from math import inf
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import checker
from tests.chaos.checker import Promises, judge
from tests.chaos.history import Event, Recorder, read

LEASE = 5.0
LOSS = 0.1  # of the calls get no answer
GROUPS = Promises(groups=frozenset({"readers"}))
CLAIMANT = ("task", "attempt", "owner", "fence")
Plant = Callable[[list[Event], random.Random], None]
Program = Generator[float, None, None]  # a process in virtual time, which yields its pauses


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


@dataclass(slots=True)
class Job:
    """A task of the simulated queue. `attempt` is that of its claim, or the number of attempts that count."""

    task: str
    identifier: str
    state: str = "READY"
    attempt: int = 0
    owner: str = ""
    fence: int = 0
    lapses: float = 0.0
    ready: float = 0.0  # the earliest moment of the next attempt


class Queue:
    """A correct queue. Each call is one moment of the server."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._fences = count(1)
        self._registered: dict[str, int] = {}
        self.jobs: list[Job] = []
        self.effects: list[Event] = []
        self.log: list[Event] = []

    def push(self, rows: list[Event]) -> bool:
        """Adds tasks."""
        self.jobs += [Job(row["task"], row["identifier"]) for row in rows]
        return True

    def register(self, owner: str) -> int:
        """Gives an owner a new fence, which takes over its tasks."""
        held = self.held(owner, self._registered.get(owner, 0))
        self._registered[owner] = fence = next(self._fences)
        for job in held:
            job.fence, job.lapses = fence, self._clock() + LEASE
        return fence

    def held(self, owner: str, fence: int) -> list[Job]:
        """The tasks of a registration. An attempt whose lease has lapsed does not count."""
        for job in self._active():
            if job.lapses <= self._clock():
                job.state, job.attempt = "READY", job.attempt - 1
        return [job for job in self._active() if (job.owner, job.fence) == (owner, fence)]

    def renew(self, owner: str, fence: int) -> list[Job]:
        """Renews the leases of a registration."""
        held = self.held(owner, fence)
        for job in held:
            job.lapses = self._clock() + LEASE
        return held

    def claim(self, owner: str, fence: int, size: int) -> list[Job] | None:
        """Hands out the first tasks of identifiers of which no task is held. None if the registration was replaced."""
        if self._registered[owner] != fence:
            return None
        self.held(owner, fence)
        busy = {job.identifier for job in self._active()}
        claimed: list[Job] = []
        for job in self.jobs:
            ready = job.state == "READY" and job.ready <= self._clock() and job.identifier not in busy
            if ready and len(claimed) < size:
                busy.add(job.identifier)
                claimed.append(job)
                job.state, job.attempt, job.owner, job.fence = "ACTIVE", job.attempt + 1, owner, fence
                job.lapses = self._clock() + LEASE
        return claimed

    def decide(self, claim: Event, fence: int, delay: float | None) -> bool:
        """Ends an attempt: with success, or with another attempt after the delay."""
        for job in self.held(claim["owner"], fence):
            if (job.task, job.attempt) == (claim["task"], claim["attempt"]):
                if delay is None:
                    job.state = "SUCCEEDED"
                    self.effects.append({name: claim[name] for name in CLAIMANT})
                    self.log.append({"position": len(self.log) + 1, "task": job.task, "identifier": job.identifier})
                else:
                    job.state, job.ready = "READY", self._clock() + delay
                return True
        return False

    def _active(self) -> list[Job]:
        return [job for job in self.jobs if job.state == "ACTIVE"]


class Simulation:
    """Programs that use a correct queue at the same time. Some calls get no answer, and some of those are late."""

    def __init__(self, seed: int, delay: float) -> None:
        self.chance = random.Random(seed)  # noqa: S311 -- a history that can be repeated
        self.delay = delay  # of another attempt, at most
        self.now = 0.0
        self.events: list[Event] = []
        self.queue = Queue(lambda: self.now)
        self.changing = 0  # producers and late calls
        self._agenda: list[tuple[float, int, Program]] = []
        self._numbers = count()
        self._places = [0, 0]  # of the readers of two partitions

    def start(self, program: Program, pause: float = 0.0) -> None:
        """Lets a program go on after a pause."""
        heapq.heappush(self._agenda, (self.now + pause, next(self._numbers), program))

    def run(self) -> None:
        """Runs all programs to their end."""
        while self._agenda:
            self.now, _, program = heapq.heappop(self._agenda)
            pause = next(program, None)
            if pause is not None:
                self.start(program, pause)

    def finished(self) -> bool:
        """Whether all tasks have ended, and none is to come."""
        return self.changing == 0 and all(job.state == "SUCCEEDED" for job in self.queue.jobs)

    def write(self, kind: str, began: float, ended: float | None, row: Event) -> Event:
        """Writes an event, which may get its answer later."""
        self.events.append({"kind": kind, "began": began, "ended": ended, **row})
        return self.events[-1]

    def call(self, operation: Callable[[], Any]) -> Generator[float, None, Any]:
        """Carries out an operation between the begin and the end of a call. Returns None if there is no answer."""
        if self.chance.random() < LOSS:
            if self.chance.random() < 0.7:
                self.changing += 1
                self.start(self._late(operation), 3 * self.chance.random())
            yield 2 * self.chance.random()
            return None
        yield 0.3 * self.chance.random()
        answer = operation()
        yield 0.3 * self.chance.random()
        return answer

    def _late(self, operation: Callable[[], Any]) -> Program:
        operation()
        self.changing -= 1
        yield 0.0

    def producer(self, name: str) -> Program:
        """Pushes tasks."""
        self.changing += 1
        for number in range(15):
            tasks = [f"{name}-{number}-{each}" for each in range(self.chance.randint(1, 2))]
            rows: list[Event] = [{"task": task, "identifier": f"id-{self.chance.randrange(5)}"} for task in tasks]
            began = self.now
            for row in rows:
                self.write("push", began, None, row)
            if (yield from self.call(partial(self.queue.push, rows))):
                for row in rows:
                    self.write("push", began, self.now, row)
            yield self.chance.random()
        self.changing -= 1

    def reader(self, partition: int) -> Program:
        """Reads the events of a partition of the log, each in a call that commits its place."""
        log, places = self.queue.log, self._places
        while not self.finished() or places[partition] < self._next(partition):
            position = self._next(partition)
            if position > places[partition]:
                row = {"group": "readers", "position": position, "task": log[position - 1]["task"]}
                event = self.write("read", self.now, None, row)
                if (yield from self.call(partial(self._commit, partition, position))):
                    event["ended"] = self.now
            else:
                yield self.chance.random()

    def _next(self, partition: int) -> int:
        place = self._places[partition]
        events = (event for event in self.queue.log[place:] if int(event["identifier"][-1]) % 2 == partition)
        return next((int(event["position"]) for event in events), place)

    def _commit(self, partition: int, position: int) -> bool | None:
        if self._places[partition] >= position:
            return None
        self._places[partition] = position
        return True

    def history(self) -> list[Event]:
        """All events, and what is left at the end."""
        for job in self.queue.jobs:
            self.write("task", self.now, self.now, {"task": job.task, "identifier": job.identifier, "state": job.state})
        for kind, rows in (("effect", self.queue.effects), ("logged", self.queue.log)):
            for row in rows:
                self.write(kind, self.now, self.now, row)
        return self.events


class Worker:
    """A worker that pauses, crashes, and registers again. A blind one knows no answers, nor when it claimed a task."""

    def __init__(self, simulation: Simulation, name: str, *, blind: bool) -> None:
        self._simulation = simulation
        self._name = name
        self._blind = blind
        self._fence = 0
        self._started = 0.0

    def run(self) -> Program:
        """Works until all tasks have ended."""
        simulation, chance, queue = self._simulation, self._simulation.chance, self._simulation.queue
        while not simulation.finished():
            began = simulation.now
            fence = yield from simulation.call(partial(queue.register, self._name))
            if fence is None:
                continue
            self._fence = fence
            claims = yield from self._claim(partial(queue.held, self._name, fence), began)
            while claims is not None and (yield from self._handle(claims)) and not simulation.finished():
                yield chance.random()
                look = partial(queue.claim, self._name, fence, chance.randint(1, 3))
                claims = yield from self._claim(look, simulation.now)
            if chance.random() < 0.5:  # it is killed, and starts again later
                yield 2 * LEASE * chance.random()
                self._started = simulation.now

    def _claim(
        self, look: Callable[[], list[Job] | None], renewed: float
    ) -> Generator[float, None, list[Event] | None]:
        simulation, began = self._simulation, self._simulation.now
        recorded = not self._blind and simulation.chance.random() < 0.5  # also if the answer is lost

        def operation() -> list[Event] | None:
            jobs = look()
            claims = None if jobs is None else [self._row(job, began, renewed + LEASE) for job in jobs]
            simulation.events += claims if claims and recorded else []
            return claims

        claims: list[Event] | None = yield from simulation.call(operation)
        if not self._blind:
            for claim in claims or []:
                claim["ended"] = simulation.now
            simulation.events += claims if claims and not recorded else []
        return claims

    def _row(self, job: Job, began: float, until: float) -> Event:
        fence = int(self._started * 1000) if self._blind else self._fence
        row = {"task": job.task, "identifier": job.identifier, "attempt": job.attempt, "owner": self._name}
        return {"kind": "claim", "began": began, "ended": None, "until": until, "fence": fence, **row}

    def _handle(self, claims: list[Event]) -> Generator[float, None, bool]:
        """Decides on claimed tasks. Returns False if the worker is to register again."""
        simulation, chance = self._simulation, self._simulation.chance
        for claim in claims:
            if self._blind:
                claim.update(began=self._started, ended=simulation.now)
                simulation.events.append(claim)
            yield (2 * LEASE if chance.random() < 0.15 else 1.0) * chance.random()
            if chance.random() < 0.3:
                yield from self._renew(claims)
            if chance.random() < 0.1 or not (yield from self._decide(claim)):
                return False
        return True

    def _renew(self, claims: list[Event]) -> Program:
        simulation, began = self._simulation, self._simulation.now

        def operation() -> set[tuple[str, int]]:
            return {(job.task, job.attempt) for job in simulation.queue.renew(self._name, self._fence)}

        held = yield from simulation.call(operation)
        for claim in claims:
            if (claim["task"], claim["attempt"]) in (held or ()):
                claim["until"] = began + LEASE

    def _decide(self, claim: Event) -> Generator[float, None, bool]:
        """Asks once or twice to end an attempt. Returns False if the worker is to register again."""
        simulation, chance, lost = self._simulation, self._simulation.chance, False
        for _ in range(chance.randint(1, 2)):
            delay = simulation.delay * chance.random() if chance.random() < 0.15 else None
            row = {name: claim[name] for name in CLAIMANT} | {"result": "SUCCESS" if delay is None else "RETRY"}
            event = simulation.write("decision", simulation.now, None, row)
            answer = yield from simulation.call(partial(simulation.queue.decide, claim, self._fence, delay))
            lost = lost or answer is None
            if answer:
                event["ended"] = None if self._blind else simulation.now
                return not lost
        return not lost and chance.random() < 0.5


def concurrent(seed: int, delay: float = 0.0) -> list[Event]:
    """The history of a correct queue that two producers, four workers and two readers use at the same time."""
    simulation = Simulation(seed, delay)
    for number in range(2):
        simulation.start(simulation.producer(f"producer-{number}"))
        simulation.start(simulation.reader(number))
    for number in range(4):
        simulation.start(Worker(simulation, f"worker-{number}", blind=number == 3).run())
    simulation.run()
    return simulation.history()


def only(events: list[Event], kind: str, **row: object) -> Iterator[Event]:
    """The answered events of a kind with these values."""
    for event in events:
        if event["kind"] == kind and event["ended"] is not None and row.items() <= event.items():
            yield event


def pick(chance: random.Random, candidates: Iterable[Event], fits: Callable[[Event], bool] = bool) -> Event:
    """Any of the candidates that fits."""
    found = list(candidates)
    return next(each for each in chance.sample(found, len(found)) if fits(each))


def claimant(event: Event) -> Event:
    return {name: event[name] for name in CLAIMANT}


def instant(kind: str, moment: float, **row: object) -> Event:
    """A call that takes almost no time."""
    return {"kind": kind, "began": moment, "ended": moment + 1e-9, **row}


def stranger(moment: float, of: Event) -> Event:
    """A first claim of a task by an owner of its own."""
    row = {"task": of["task"], "identifier": of["identifier"], "attempt": 1, "owner": "stranger", "fence": 10**9}
    return instant("claim", moment, until=moment + LEASE, **row)


def remove_a_task(events: list[Event], chance: random.Random) -> None:
    """The queue forgets a task that was pushed."""
    task = pick(chance, only(events, "push"))["task"]
    events[:] = [event for event in events if event["kind"] in ("push", "logged", "read") or event["task"] != task]


def remove_a_task_that_was_claimed(events: list[Event], chance: random.Random) -> None:
    """The queue forgets a task whose push got no answer, and which was handed out."""
    task = pick(chance, only(events, "claim"))["task"]
    events[:] = [event for event in events if event["kind"] not in ("task", "effect") or event["task"] != task]
    for push in only(events, "push", task=task):
        push["ended"] = None


def leave_a_task(events: list[Event], chance: random.Random) -> None:
    """A task never ends."""
    task = pick(chance, only(events, "task"))
    task["state"] = "READY"
    events[:] = [event for event in events if event["kind"] != "effect" or event["task"] != task["task"]]


def lose_an_acknowledged_success(events: list[Event], chance: random.Random) -> None:
    """A server that takes over does not know a success, and hands the task out again."""
    decision = pick(chance, only(events, "decision", result="SUCCESS"))
    effect = next(only(events, "effect", task=decision["task"]))
    claim = stranger(decision["ended"] + 1.0, next(only(events, "task", task=decision["task"])))
    effect.update(claimant(claim))
    events += [claim, instant("decision", claim["ended"] + 1.0, result="SUCCESS", **claimant(claim))]


def invent_a_task(events: list[Event], chance: random.Random) -> None:
    """A task is there that was never pushed."""
    task = pick(chance, only(events, "task"))["task"]
    events[:] = [event for event in events if event["kind"] != "push" or event["task"] != task]


def show_a_task_twice(events: list[Event], chance: random.Random) -> None:
    """A task is there twice."""
    events.append(pick(chance, only(events, "task")).copy())


def repeat_an_effect(events: list[Event], chance: random.Random) -> None:
    """A decision is committed twice."""
    events.append(pick(chance, only(events, "effect")).copy())


def drop_an_effect(events: list[Event], chance: random.Random) -> None:
    """A decision is committed without its effect."""
    events.remove(pick(chance, only(events, "effect")))


def leave_an_effect(events: list[Event], chance: random.Random) -> None:
    """A task is gone, and its effect is there."""
    task = pick(chance, only(events, "effect"))["task"]
    events[:] = [event for event in events if event["kind"] != "task" or event["task"] != task]


def decide_after_another_claim(events: list[Event], chance: random.Random) -> None:
    """An owner whose lease has lapsed decides, after another claim of the task."""

    def lapsed(later: Event) -> list[Event]:
        claims = [each for each in events if each["kind"] == "claim" and each["task"] == later["task"]]
        own = [each for each in claims if each["ended"] is not None and each["ended"] < later["began"]]
        last = {tuple(claimant(each).values()): each for each in claims}
        return [
            each for each in own if last[tuple(claimant(each).values())] is each and each["attempt"] <= later["attempt"]
        ]

    later = pick(chance, only(events, "claim"), lambda each: bool(lapsed(each)))
    own = claimant(pick(chance, lapsed(later)))
    events.append(instant("decision", later["ended"] + 1e-6, result="SUCCESS", **own))


def decide_during_another_claim(events: list[Event], chance: random.Random) -> None:
    """The call of a decision begins before another claim of the task, and is committed after it."""

    def claimed(of: Event) -> float:
        same = (each for each in events if each["kind"] == "claim" and claimant(each) == claimant(of))
        return max(inf if each["ended"] is None else each["ended"] for each in same)

    late = pick(chance, only(events, "decision", result="SUCCESS"), lambda each: claimed(each) < each["began"])
    late["began"] = claimed(late)
    other = stranger(chance.uniform(late["began"], late["ended"]), next(only(events, "task", task=late["task"])))
    events.append(other)


def decide_without_a_claim(events: list[Event], chance: random.Random) -> None:
    """An owner decides on a task that it has not claimed."""
    pick(chance, only(events, "decision"))["owner"] = "stranger"


def claim_after_the_end(events: list[Event], chance: random.Random) -> None:
    """A task is handed out again after its success."""
    decision = pick(chance, only(events, "decision", result="SUCCESS"))
    events.append(
        stranger(decision["ended"] + chance.random() + 1e-6, next(only(events, "task", task=decision["task"])))
    )


def claim_the_next_attempt(events: list[Event], chance: random.Random) -> None:
    """An attempt follows one that succeeds, at any moment."""
    effect = pick(chance, only(events, "effect"))
    claim = stranger(effect["began"] * chance.random(), next(only(events, "task", task=effect["task"])))
    events.append(claim | {"attempt": effect["attempt"] + 1})


def succeed_twice(events: list[Event], chance: random.Random) -> None:
    """Two claims of a task succeed, at any moments."""
    effect = pick(chance, only(events, "effect"))
    claim = stranger(effect["began"] * chance.random(), next(only(events, "task", task=effect["task"])))
    events += [claim, instant("decision", claim["ended"] + chance.random(), result="SUCCESS", **claimant(claim))]


def while_held(events: list[Event], chance: random.Random) -> tuple[Event, float]:
    """A claim, and a moment at which its owner certainly has the task."""

    def end(claim: Event) -> float:
        others = [each for each in events if each["task"] == claim["task"] and each["kind"] in ("claim", "decision")]
        asked = [each["began"] for each in others if each["kind"] == "decision" and claimant(each) == claimant(claim)]
        taken = [each["began"] for each in others if each["owner"] == claim["owner"] and each["fence"] > claim["fence"]]
        return float(min([claim["until"], *asked, *taken]))

    claim = pick(chance, only(events, "claim"), lambda each: end(each) > each["ended"] + 1e-6)
    return claim, claim["ended"] + (end(claim) - claim["ended"]) * chance.uniform(0.1, 0.9)


def hand_out_twice(events: list[Event], chance: random.Random) -> None:
    """The same attempt goes to two owners."""
    claim, moment = while_held(events, chance)
    events.append(stranger(moment, claim))


def hand_out_a_second_of_the_identifier(events: list[Event], chance: random.Random) -> None:
    """A task is handed out while another one of its identifier is held."""
    claim, moment = while_held(events, chance)
    others = only(events, "task", identifier=claim["identifier"])
    events.append(stranger(moment, pick(chance, others, lambda each: bool(each["task"] != claim["task"]))))


def later_of_the_identifier(events: list[Event], chance: random.Random, kind: str) -> tuple[Event, Event]:
    """Any answered event of a task, and the push of a later one of its identifier."""

    def later(event: Event) -> list[Event]:
        push = next(only(events, "push", task=event["task"]), None)
        if push is None:
            return []
        others = only(events, "push", identifier=push["identifier"])
        return [other for other in others if other["began"] > push["ended"]]

    event = pick(chance, only(events, kind), lambda each: bool(later(each)))
    return event, pick(chance, later(event))


def hand_out_in_another_order(events: list[Event], chance: random.Random) -> None:
    """A task is handed out before the first claim of one that was pushed before, of which it may not be the next."""
    first, later = later_of_the_identifier(events, chance, "claim")
    began = min(each["began"] for each in events if each["kind"] == "claim" and each["task"] == first["task"])
    events.append(stranger(began - 1.0, later))


def hand_out_before_the_end(events: list[Event], chance: random.Random) -> None:
    """A task is handed out before the success of one that was pushed before, whose lease may have lapsed."""
    effect, later = later_of_the_identifier(events, chance, "effect")
    asked = [each["began"] for each in events if each["kind"] == "decision" and claimant(each) == claimant(effect)]
    events.append(stranger(min(asked) - 1e-6, later))


def skip_an_event(events: list[Event], chance: random.Random) -> None:
    """A group never reads an event of the log."""
    position = pick(chance, only(events, "logged"))["position"]
    events[:] = [event for event in events if event["kind"] != "read" or event["position"] != position]


def skip_all_events(events: list[Event], _: random.Random) -> None:
    """A group reads nothing."""
    events[:] = [event for event in events if event["kind"] != "read"]


def read_an_unknown_event(events: list[Event], chance: random.Random) -> None:
    """A group reads an event that the log does not have."""
    position = pick(chance, only(events, "read"))["position"]
    events[:] = [event for event in events if event["kind"] != "logged" or event["position"] != position]


def read_an_event_again(events: list[Event], chance: random.Random) -> None:
    """A group commits an event of the log twice."""
    events.append(pick(chance, only(events, "read")).copy())


def read_out_of_order(events: list[Event], chance: random.Random) -> None:
    """A group reads two events of an identifier in the reverse order."""
    of = {event["position"]: event["identifier"] for event in only(events, "logged")}

    def following(read: Event) -> list[Event]:
        reads = (each for each in only(events, "read") if of[each["position"]] == of[read["position"]])
        return [each for each in reads if each["began"] > read["ended"]]

    first = pick(chance, only(events, "read"), lambda each: bool(following(each)))
    second = pick(chance, following(first))
    for name in ("position", "task"):
        first[name], second[name] = second[name], first[name]


PLANTED: list[tuple[Plant, str]] = [
    (remove_a_task, "lost"),
    (remove_a_task_that_was_claimed, "lost"),
    (leave_a_task, "lost"),
    (lose_an_acknowledged_success, "lost"),
    (invent_a_task, "invented"),
    (show_a_task_twice, "twice there"),
    (repeat_an_effect, "effects"),
    (drop_an_effect, "effects"),
    (leave_an_effect, "effects"),
    (decide_after_another_claim, "superseded"),
    (decide_during_another_claim, "superseded"),
    (decide_without_a_claim, "unclaimed"),
    (claim_after_the_end, "after success"),
    (claim_the_next_attempt, "after success"),
    (succeed_twice, "ended twice"),
    (hand_out_twice, "twice at once"),
    (hand_out_a_second_of_the_identifier, "one at a time"),
    (hand_out_in_another_order, "order"),
    (hand_out_before_the_end, "order"),
    (skip_an_event, "skipped"),
    (skip_all_events, "skipped"),
    (read_an_unknown_event, "not logged"),
    (read_an_event_again, "read twice"),
    (read_out_of_order, "read order"),
]


@pytest.mark.parametrize("seed", range(50))
def test_a_history_of_a_correct_queue_has_no_violation(seed: int) -> None:
    assert judge(correct(seed), GROUPS) == []


@pytest.mark.parametrize("seed", range(100))
def test_a_history_of_overlapping_calls_has_no_violation(seed: int) -> None:
    assert judge(concurrent(seed), GROUPS) == []


@pytest.mark.parametrize("seed", range(50))
def test_a_history_of_tasks_that_are_tried_again_later_has_no_violation(seed: int) -> None:
    assert judge(concurrent(seed, delay=LEASE), replace(GROUPS, in_order=False)) == []


def test_the_histories_of_overlapping_calls_contain_what_the_checker_is_careful_about() -> None:
    found: set[str] = set()
    for seed in range(20):
        events = concurrent(seed)
        claims = [event for event in events if event["kind"] == "claim"]
        found |= {f"{each['kind']} without an answer" for each in events if each["ended"] is None}
        for one, other in permutations(claims, 2):
            if one["task"] == other["task"] and one["attempt"] == other["attempt"]:
                found.add("another owner" if one["owner"] != other["owner"] else "the same owner")
                found |= {"the same claim"} if claimant(one) == claimant(other) else set()
    kinds = {f"{kind} without an answer" for kind in ("push", "claim", "decision", "read")}
    assert found == {"another owner", "the same owner", "the same claim", *kinds}


@pytest.mark.parametrize("history", [correct, concurrent])
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("plant", "rule"), PLANTED, ids=lambda value: getattr(value, "__name__", ""))
def test_the_checker_finds_a_planted_error(
    plant: Plant, rule: str, seed: int, history: Callable[[int], list[Event]]
) -> None:
    events = history(seed)
    plant(events, random.Random(seed))  # noqa: S311 -- a place that can be found again
    assert rule in {violation.rule for violation in judge(events, GROUPS)}


def test_each_rule_has_a_planted_error() -> None:
    lines = [line[4:] for line in (checker.__doc__ or "").splitlines() if line.startswith("    ")]
    named = {line.split("  ")[0] for line in lines if not line.startswith(" ")}
    assert {rule for _, rule in PLANTED} == named


def test_a_queue_that_promises_less_is_judged_by_less() -> None:
    events = correct(0)
    hand_out_in_another_order(events, random.Random(0))  # noqa: S311 -- a place that can be found again
    assert "order" not in {each.rule for each in judge(events, Promises(in_order=False))}


def push(task: str, began: float, ended: float | None, identifier: str = "a") -> Event:
    return {"kind": "push", "began": began, "ended": ended, "task": task, "identifier": identifier}


def claim(
    task: str, attempt: int, owner: str, began: float, ended: float | None, until: float, fence: int = 1
) -> Event:
    row = {"task": task, "identifier": "a", "attempt": attempt, "owner": owner, "fence": fence}
    return {"kind": "claim", "began": began, "ended": ended, "until": until, **row}


def decision(of: Event, began: float, ended: float | None, result: str = "SUCCESS") -> Event:
    return {"kind": "decision", "began": began, "ended": ended, "result": result, **claimant(of)}


def effect(of: Event) -> Event:
    return {"kind": "effect", "began": 100.0, "ended": 100.0, **claimant(of)}


def left(task: str) -> Event:
    return {"kind": "task", "began": 100.0, "ended": 100.0, "task": task, "identifier": "a", "state": "SUCCEEDED"}


def rules(*events: Event, promises: Promises | None = None) -> set[str]:
    return {violation.rule for violation in judge(events, promises)}


PUSHED = (push("A", 0.0, 0.1), push("B", 0.2, 0.3), push("C", 0.4, 0.5))
ONE = (PUSHED[0], left("A"))


def test_another_owner_supersedes_with_the_same_attempt() -> None:
    lapsed, other = claim("A", 1, "w1", 1, 2, 7), claim("A", 1, "w2", 8, 9, 14, fence=2)
    late = [lapsed, decision(lapsed, 10, 11), effect(lapsed)]
    assert rules(*ONE, other, *late) == {"superseded"}
    assert rules(*ONE, other, *late, claim("A", 1, "w1", 9.2, 9.5, 14)) == {"twice at once"}  # the owner may decide
    assert rules(*ONE, {**other, "ended": 10.5}, *late) == {"superseded"}  # or it has claimed a task that succeeded
    assert rules(*ONE, {**other, "owner": "w1", "ended": 10.5}, *late) == {"superseded"}
    assert rules(*ONE, {**other, "began": 1.5}, *late) == set()
    assert rules(*ONE, {**other, "ended": None}, *late) == set()


def test_a_call_without_an_answer_may_be_one_that_failed() -> None:
    own, other = claim("A", 1, "w1", 1, 2, 7), claim("A", 1, "w2", 8, 9, 14, fence=2)
    own_again = claim("A", 1, "w1", 15, 16, 20)
    events = [own, other, decision(own, 10, None), own_again, decision(own, 17, 18), effect(own)]
    assert rules(*ONE, *events) == set()


@pytest.mark.parametrize("attempt", [1, 2])
def test_no_claim_follows_a_success(attempt: int) -> None:
    own, later = claim("A", 1, "w1", 1, 2, 7), claim("A", attempt, "w2", 5, 6, 11, fence=2)
    ended = [*ONE, own, decision(own, 3, 4), effect(own)]
    assert rules(*ended, later) == {"after success"}
    assert rules(*ended, {**later, "ended": None}) == set()
    # A claim of the same attempt may have lapsed before that of the success.
    assert rules(*ended, {**later, "began": 0.5, "until": 1.0}) == ({"after success"} if attempt == 2 else set())


def test_an_acknowledged_success_stays() -> None:
    lost, again = claim("A", 1, "w1", 1, 2, 7), claim("A", 1, "w2", 8, 9, 14, fence=2)
    events = [*ONE, lost, decision(lost, 3, 4), again, decision(again, 10, 11), effect(again)]
    assert rules(*events) == {"lost", "after success", "ended twice"}
    retried = [decision(lost, 3, 4, "RETRY"), claim("A", 2, "w2", 8, 9, 14)]
    assert rules(*ONE, lost, *retried, decision(retried[1], 10, 11), effect(retried[1])) == set()


def test_a_claim_proves_a_push_that_got_no_answer() -> None:
    unanswered, own = push("A", 0.0, None), claim("A", 1, "w1", 1, 2, 7)
    assert rules(unanswered) == set()
    assert rules(unanswered, {**own, "ended": None}) == set()
    assert rules(unanswered, own) == {"lost"}
    assert rules(unanswered, own, decision(own, 3, 4), effect(own)) == {"lost", "effects"}
    assert rules(own) == {"lost", "invented"}


def test_two_claims_do_not_both_succeed() -> None:
    own, other = claim("A", 1, "w1", 1, 9, 2), claim("A", 1, "w2", 1, 9, 2, fence=2)
    both = [*ONE, own, other, decision(own, 3, 20), decision(other, 3, 20)]
    assert rules(*both, effect(own)) == {"ended twice", "lost"}
    assert rules(*both, effect(own), effect(other)) == {"ended twice", "effects"}


def test_the_next_attempt_contradicts_a_success_at_any_moment() -> None:
    own, following = claim("A", 1, "w1", 1, 9, 2), claim("A", 2, "w2", 1, 9, 2, fence=2)
    assert rules(*ONE, own, following, decision(own, 3, None), effect(own)) == {"after success"}
    assert rules(*ONE, own, following, decision(own, 3, None), effect(following)) == set()


def test_order_is_judged_between_all_tasks_of_an_identifier() -> None:
    claims = {
        "B": claim("B", 1, "w1", -50, 20, 20),
        "C": claim("C", 1, "w2", 2, 3, 3),
        "A": claim("A", 1, "w2", 5, 6, 6),
    }
    ended = [each for of in claims.values() for each in (of, decision(of, 20, None), effect(of), left(of["task"]))]
    assert rules(*PUSHED, *ended) == {"order"}
    assert rules(PUSHED[0], {**PUSHED[1], "ended": None}, {**PUSHED[2], "began": 0.05}, *ended) == set()
    assert rules(*PUSHED, *ended, promises=Promises(in_order=False)) == set()


def test_order_is_judged_for_tasks_that_did_not_succeed() -> None:
    first, second = claim("A", 1, "w1", 5, 6, 6), claim("B", 1, "w2", 2, 3, 3)
    states = [{**left(task), "state": "FAILED"} for task in ("A", "B")]
    promises = Promises(ended=frozenset({"FAILED"}))
    assert rules(*PUSHED[:2], *states, first, second, promises=promises) == {"order"}
    assert rules(*PUSHED[:2], *states, {**first, "began": 3}, second, promises=promises) == set()


def test_a_task_whose_lease_has_lapsed_keeps_the_turn_of_its_identifier() -> None:
    lapsed, again = claim("A", 1, "w1", 1, 2, 7), claim("A", 1, "w2", 12, 13, 18, fence=2)
    overtaking = claim("B", 1, "w2", 8, 9, 14, fence=2)
    ended = [decision(overtaking, 10, 11), effect(overtaking), decision(again, 14, 15), effect(again)]
    events = [*PUSHED[:2], left("A"), left("B"), lapsed, overtaking, again, *ended]
    assert rules(*events) == {"order"}
    assert rules(*events, promises=Promises(in_order=False)) == set()
    assert rules(*events, promises=Promises(one_at_a_time=False)) == set()


def test_a_group_that_reads_nothing_skips_all() -> None:
    own = claim("A", 1, "w1", 1, 2, 7)
    logged = {"kind": "logged", "began": 100.0, "ended": 100.0, "position": 1, "task": "A", "identifier": "a"}
    events = [*ONE, own, decision(own, 3, 4), effect(own), logged]
    assert rules(*events) == set()
    assert [each.rule for each in judge(events, Promises(groups=frozenset({"r", "s"})))] == ["skipped", "skipped"]


def test_a_task_is_there_once() -> None:
    own = claim("A", 1, "w1", 1, 2, 7)
    assert rules(*ONE, own, decision(own, 3, 4), effect(own), left("A")) == {"twice there"}


def test_an_effect_needs_its_task() -> None:
    own = claim("A", 1, "w1", 1, 2, 7)
    assert "effects" in rules(push("A", 0.0, None), effect(own))


def test_a_read_needs_an_event_of_the_log() -> None:
    read_event = {"kind": "read", "began": 50.0, "ended": 51.0, "group": "r", "position": 1, "task": "A"}
    own = claim("A", 1, "w1", 1, 2, 7)
    events = [*ONE, own, decision(own, 3, 4), effect(own)]
    logged = {"kind": "logged", "began": 100.0, "ended": 100.0, "position": 1, "task": "B", "identifier": "a"}
    assert rules(*events, read_event) == {"not logged"}
    assert rules(*events, read_event, logged) == {"not logged"}
    assert rules(*events, read_event, {**logged, "task": "A"}) == set()


def test_overlapping_reads_may_have_any_order() -> None:
    row = {"group": "r", "identifier": "a"}
    log = [{"kind": "logged", "began": 99.0, "ended": 99.0, "position": each, "task": each, **row} for each in (1, 2)]
    reads = [{**log[1], "kind": "read", "began": 1, "ended": 3}, {**log[0], "kind": "read", "began": 2, "ended": 4}]
    assert "read order" not in rules(*log, *reads)
    assert "read order" in rules(*log, reads[0], {**reads[1], "began": 3.5})


def test_a_claim_at_an_unknown_moment_holds_its_task_from_its_end_to_the_end_of_its_lease() -> None:
    unknown = claim("A", 1, "worker", -50, 10, 14)
    ended = [decision(unknown, 13, None), effect(unknown)]
    assert rules(*ONE, unknown, *ended, claim("A", 1, "w1", 11, 12, 17)) == {"superseded", "twice at once"}
    assert rules(*ONE, unknown, *ended, claim("A", 1, "w1", 1, 2, 10)) == set()
    other = [push("B", 0.05, 0.3), left("B"), claim("B", 1, "w1", 11, 12, 17)]
    other += [decision(other[2], 13, 14), effect(other[2])]
    assert rules(*ONE, unknown, *ended, *other) == {"one at a time"}
    assert rules(*ONE, {**unknown, "until": 9}, *ended, *other) == set()


def test_half_a_line_of_a_killed_process_is_left_out(tmp_path: Path) -> None:
    with Recorder(tmp_path, "worker") as recorder:
        recorder.write("push", 1.0, 2.0, [{"task": 1, "identifier": "a"}])
    with (tmp_path / "worker.jsonl").open("a") as file:
        file.write('{"kind": "push", "beg')
    assert list(read(tmp_path)) == [{"kind": "push", "began": 1.0, "ended": 2.0, "task": 1, "identifier": "a"}]
