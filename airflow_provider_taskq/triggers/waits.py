"""What can be waited for, what is asked of the queue for it, and when the answer ends the wait."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from airflow_provider_taskq.queue import State, TopicStatus, UnknownTopic
from airflow_provider_taskq.queue.topic_status import describe_group_wait, describe_ready_wait, describe_state_wait

Outcome_co = TypeVar("Outcome_co", covariant=True)


class Seen(NamedTuple):
    """What taskq.watch says to a question: a number, and the seconds that the oldest due task has waited.

    Both None where there is nothing to tell: no task is ready, none of the identifier is stored, groups are still
    waited for. `looked` is the moment of `time.monotonic()` at which the look began: it was said after that. `known`
    tells of a topic that does not exist whether an earlier look has found it.
    """

    number: int | None
    waited: float | None
    looked: float = 0.0
    known: bool = False


NOTHING = Seen(None, None)
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class ReadyQuestion:
    """How many tasks of a topic can be polled under a condition."""

    topic: str
    condition: str


@dataclass(frozen=True, slots=True)
class StateQuestion:
    """In which state the newest task of an identifier is."""

    topic: str
    identifier: str


@dataclass(frozen=True, slots=True)
class JunctureQuestion:
    """Which groups are still to be released for a name."""

    name: str
    topic: str
    groups: tuple[tuple[str, ...], ...]
    junction: str


Question = ReadyQuestion | StateQuestion | JunctureQuestion


class Wait(Protocol[Outcome_co]):
    """One thing waited for in one topic. Equal waits are one to the watcher: they are judged once and end together."""

    @property
    def topic(self) -> str:
        """The topic that it is about, by which it is woken."""

    @property
    def poll_interval(self) -> float:
        """Seconds between two looks, at the shortest."""

    @property
    def questions(self) -> tuple[Question, ...]:
        """What is to be asked for it, each look again."""

    @property
    def condition(self) -> str:
        """The condition under which the topic's tasks are counted for `sentence`."""

    def outcome(self, seen: Sequence[Seen]) -> Outcome_co | None:
        """What it is answered, or None as long as it goes on; `seen` is what was said to each of its questions."""

    def sentence(self, seen: Sequence[Seen], status: TopicStatus) -> str:
        """What it waits for, for a log and for the error of a timeout."""


@dataclass(frozen=True, slots=True)
class ReadyWait:
    """Waits for `min_tasks` ready tasks; for any, once the topic's oldest due one has waited `max_wait` seconds."""

    topic: str
    min_tasks: int = 1
    condition: str = "NONE"
    max_wait: float | None = None
    poll_interval: float = 1.0

    @property
    def questions(self) -> tuple[Question, ...]:
        """The one that it asks."""
        return (ReadyQuestion(self.topic, self.condition),)

    def outcome(self, seen: Sequence[Seen]) -> int | None:
        """How many are ready; they were counted no further than the most that anybody waits for."""
        ((ready, waited, *_),) = seen
        if not ready:
            return None
        _check(self.topic, seen[0])
        aged = self.max_wait is not None and waited is not None and waited >= self.max_wait
        return ready if ready >= self.min_tasks or aged else None

    def sentence(self, seen: Sequence[Seen], status: TopicStatus) -> str:  # noqa: ARG002  the status has the counts
        """How many tasks it waits for, and what the topic has."""
        return describe_ready_wait(status, self.min_tasks, self.condition, self.max_wait)


@dataclass(frozen=True, slots=True)
class StateWait:
    """Waits until the newest task of each identifier is in one of `states`, or of any in one of `failed_states`."""

    topic: str
    identifiers: tuple[str, ...]
    states: frozenset[str]
    failed_states: frozenset[str]
    poll_interval: float = 1.0

    @property
    def questions(self) -> tuple[Question, ...]:
        """One for each identifier."""
        return tuple(StateQuestion(self.topic, identifier) for identifier in self.identifiers)

    def outcome(self, seen: Sequence[Seen]) -> dict[str, str | None] | None:
        """The state of each identifier, by name; None where no task of it is stored."""
        for one in seen:
            _check(self.topic, one)
        found = self._found(seen)
        names = found.values()
        over = all(name in self.states for name in names) or any(name in self.failed_states for name in names)
        return found if over else None

    @property
    def condition(self) -> str:
        """None: states are counted by identifier."""
        return "NONE"

    def sentence(self, seen: Sequence[Seen], status: TopicStatus) -> str:
        """Which states it waits for, and which identifiers are in another one."""
        return describe_state_wait(status, self._found(seen), self.states)

    def _found(self, seen: Sequence[Seen]) -> dict[str, str | None]:
        """The state of each identifier, by name; None where no task of it is stored."""
        return {
            identifier: None if one.number is None or one.number == UNKNOWN else State(one.number).name
            for identifier, one in zip(self.identifiers, seen, strict=True)
        }


@dataclass(frozen=True, slots=True)
class JunctureWait:
    """Waits until each group was released for its name, and releases them as they become complete."""

    name: str
    topic: str
    groups: tuple[tuple[str, ...], ...]
    junction: str = "SINGULAR"
    poll_interval: float = 1.0

    @property
    def questions(self) -> tuple[Question, ...]:
        """The one that it asks."""
        return (JunctureQuestion(self.name, self.topic, self.groups, self.junction),)

    def outcome(self, seen: Sequence[Seen]) -> int | None:
        """How many groups there are, once none is waited for."""
        _check(self.topic, seen[0])
        return len(self.groups) if seen[0].number == 0 else None

    @property
    def condition(self) -> str:
        """None: groups are counted by name."""
        return "NONE"

    def sentence(self, seen: Sequence[Seen], status: TopicStatus) -> str:
        """How many groups it waits for, and how many of them were released."""
        return describe_group_wait(status, len(self.groups), seen[0].number)


def unknown_topic(topic: str, *, known: bool = False) -> UnknownTopic:
    """The error about a topic that does not exist; `known` if it was seen before."""
    what = "was dropped; create it again" if known else "does not exist; create it"
    return UnknownTopic(f"topic {topic!r} {what} with: taskq topics create {shlex.quote(topic)}")


def _check(topic: str, seen: Seen) -> None:
    """Refuses a topic that the queue does not know."""
    if seen.number == UNKNOWN:
        raise unknown_topic(topic, known=seen.known)
