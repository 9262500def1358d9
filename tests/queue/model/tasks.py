"""The data of the model: a clock, tasks, topics, owners, and their identities."""

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
    """A moment: the passed hours and the number of the step. Moments order as those of the server do."""

    hours: int
    step: int

    def plus(self, hours: int) -> "Moment":
        """This many hours later."""
        return Moment(self.hours + hours, self.step)


def hours(duration: timedelta) -> int:
    """A duration in whole hours."""
    assert duration % HOUR == timedelta(0)
    return duration // HOUR


@dataclass(eq=False)
class ModelTask:
    """A task with all stored fields."""

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
    max_claim: int | None = None  # after a crash: the most tasks of a claim that has it
    redelivered: bool = False
    output: Json = None
    error: str | None = None
    completed: Moment | None = None
    failed: Moment | None = None  # its last failure that counted

    def reset(self) -> None:
        """Makes the task as it was pushed, in its old place."""
        self.state, self.due = State.READY, self.place
        self.attempt, self.crashes, self.redelivered, self.max_claim = 0, 0, False, None
        self.output = self.error = self.owner = self.completed = self.failed = None

    def supersede(self, state: State) -> None:
        """Makes the task RECREATED or REDUNDANT, and stores its earlier state as descent."""
        self.descent, self.state = self.state, state


@dataclass
class ModelTopic:
    """A topic: its policy and the state of its probe."""

    number: int  # of topics made so far: one of the same name is another one
    policy: TopicPolicy
    paused: bool = False
    failing: bool = False  # retries fail: they go out one at a time
    failed: Moment | None = None  # the last of those that went out so
    probes: set[int] = field(default_factory=set)  # the retries that went out one at a time since then
    promoted: int = 0  # the next one, if a poll has chosen it


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
    """The whole queue in memory, with look-ups."""

    tasks: dict[int, ModelTask] = field(default_factory=dict)
    topics: dict[str, ModelTopic] = field(default_factory=dict)
    owners: dict[str, ModelOwner] = field(default_factory=dict)
    now: Moment = field(default_factory=lambda: Moment(0, 0))
    made: int = 0  # topics so far

    def tick(self) -> Moment:
        """Starts the next step, at a later moment."""
        self.now = Moment(self.now.hours, self.now.step + 1)
        return self.now

    def topic(self, name: str) -> ModelTopic:
        if name not in self.topics:
            raise UnknownTopic(name)
        return self.topics[name]

    def of_topic(self, name: str, *states: State) -> list[ModelTask]:
        """The tasks of a topic in order of sequence, optionally of some states only."""
        found = [task for task in self.tasks.values() if task.topic == name and (not states or task.state in states)]
        return sorted(found, key=lambda task: task.sequence)

    def latest_of(self, number: int, identifier: str) -> ModelTask | None:
        """The newest task of an identifier in a topic."""
        name = next((name for name, topic in self.topics.items() if topic.number == number), None)
        found = [] if name is None else [task for task in self.of_topic(name) if task.identifier == identifier]
        return found[-1] if found else None

    def leaseholder(self, owner: Owner) -> ModelOwner:
        """The owner, if its lease is not gone; the lease may have lapsed."""
        known = self.owners.get(owner.name)
        if known is None or known.gone or known.fence != owner.fence:
            raise LeaseLost(owner.name)
        return known

    def held_by(self, name: str) -> list[ModelTask]:
        """The tasks that a name holds, in polled order."""
        held = [task for task in self.tasks.values() if task.state is State.ACTIVE and task.owner == name]
        return sorted(held, key=lambda task: (-task.priority, task.due, task.sequence))

    def chosen(
        self, topic: str, state: State | None, sequences: list[int] | None, from_: int, to: int | None
    ) -> list[ModelTask]:
        """Ended tasks of a topic by sequences, or by state and range, in order. Raises InvalidState for others."""
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
    """Whether a sequence lies in a range that includes both ends."""
    return from_ <= task.sequence and (to is None or task.sequence <= to)
