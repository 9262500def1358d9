"""What the model is made of: a clock of its own, tasks, topics, owners, and their identities."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from airflow_provider_taskq.queue import (
    InvalidState,
    Json,
    LeaseLost,
    Owner,
    Result,
    State,
    TopicPolicy,
    UnknownTopic,
)

HOUR = timedelta(hours=1)
ENDED = (State.EXPIRED, State.FAILED, State.SUSPENDED, State.FILTERED, State.SUCCEEDED)
COMPLETED = {State.FAILED: Result.FAILURE, State.SUSPENDED: Result.SUSPENSION}
COMPLETED |= {State.FILTERED: Result.FILTER, State.SUCCEEDED: Result.SUCCESS}


class Moment(NamedTuple):
    """A time of day: hours that were passed, and the step that was taken then; so moments order as the server's do."""

    hours: int
    step: int

    def plus(self, hours: int) -> "Moment":
        """This many hours later."""
        return Moment(self.hours + hours, self.step)


def hours(duration: timedelta) -> int:
    """A duration of whole hours, as all are here."""
    assert duration % HOUR == timedelta(0)
    return duration // HOUR


@dataclass(eq=False)
class ModelTask:
    """What the contract says a task is."""

    sequence: int
    topic: str
    identifier: str
    state: State
    created: Moment
    place: Moment  # due as pushed
    due: Moment
    priority: int = 0
    payload: Json = None
    reference: str | None = None
    ttl: int | None = None
    depends_on: tuple[tuple[int, str], ...] = ()  # number of a topic, identifier
    descent: State | None = None
    owner: str | None = None  # the owner that holds it, or that ended it
    attempt: int = 0
    crashes: int = 0
    redelivered: bool = False
    output: Json = None
    error: str | None = None
    completed: Moment | None = None
    failed: Moment | None = None  # its last failure that counted

    def reset(self) -> None:
        """As if it had just been pushed, in its old place."""
        self.state, self.due = State.READY, self.place
        self.attempt, self.crashes, self.redelivered = 0, 0, False
        self.output = self.error = self.owner = self.completed = self.failed = None

    def supersede(self, state: State) -> None:
        """RECREATED or REDUNDANT: it had another state before."""
        self.descent, self.state = self.state, state


@dataclass
class ModelTopic:
    """A policy, and what the topic's last tries say of it."""

    number: int  # of topics made so far: one of the same name is another one
    policy: TopicPolicy
    paused: bool = False
    failing: bool = False  # retries fail: they go out one at a time
    failed: Moment | None = None  # the last of those that went out so
    probes: set[int] = field(default_factory=set)  # the retries that went out one at a time since then


@dataclass
class ModelOwner:
    """A lease: it lapses by time, and is gone once another session ended it."""

    fence: int
    lease: int
    until: Moment
    seen: Moment
    gone: bool = False


@dataclass
class Holdings:
    """The whole queue in memory, and how to find one's way in it."""

    tasks: dict[int, ModelTask] = field(default_factory=dict)
    topics: dict[str, ModelTopic] = field(default_factory=dict)
    owners: dict[str, ModelOwner] = field(default_factory=dict)
    now: Moment = field(default_factory=lambda: Moment(0, 0))
    made: int = 0  # topics so far

    def tick(self) -> Moment:
        """The next step: a little later than the one before."""
        self.now = Moment(self.now.hours, self.now.step + 1)
        return self.now

    def topic(self, name: str) -> ModelTopic:
        if name not in self.topics:
            raise UnknownTopic(name)
        return self.topics[name]

    def of_topic(self, name: str, *states: State) -> list[ModelTask]:
        """The tasks of a topic in order of sequence, those of some states."""
        found = [task for task in self.tasks.values() if task.topic == name and (not states or task.state in states)]
        return sorted(found, key=lambda task: task.sequence)

    def latest_of(self, number: int, identifier: str) -> ModelTask | None:
        """The newest task of an identifier, in the topic of that number."""
        name = next((name for name, topic in self.topics.items() if topic.number == number), None)
        found = [] if name is None else [task for task in self.of_topic(name) if task.identifier == identifier]
        return found[-1] if found else None

    def leaseholder(self, owner: Owner) -> ModelOwner:
        """The owner, whose lease may have lapsed, but is not gone."""
        known = self.owners.get(owner.name)
        if known is None or known.gone or known.fence != owner.fence:
            raise LeaseLost(owner.name)
        return known

    def held_by(self, name: str) -> list[ModelTask]:
        """What a name holds, in polled order."""
        held = [task for task in self.tasks.values() if task.state is State.ACTIVE and task.owner == name]
        return sorted(held, key=lambda task: (-task.priority, task.due, task.sequence))

    def chosen(
        self, topic: str, state: State | None, sequences: list[int] | None, from_: int, to: int | None
    ) -> list[ModelTask]:
        """Ended tasks of a topic, by sequence or by state and range, in order; InvalidState for what has not ended."""
        self.topic(topic)
        if (state is None) == (sequences is None) or (sequences is not None and (from_, to) != (0, None)):
            raise InvalidState
        if sequences is None:
            if state not in ENDED:
                raise InvalidState
            return [task for task in self.of_topic(topic, state) if in_range(task, from_, to)]
        found = [task for task in self.of_topic(topic, *ENDED) if task.sequence in sequences]
        if len(found) < len(set(sequences)):
            raise InvalidState
        return found


def in_range(task: ModelTask, from_: int, to: int | None) -> bool:
    """Both ends are included."""
    return from_ <= task.sequence and (to is None or task.sequence <= to)
