"""Waits: what gates wait for, the one query that checks any number of them, and the outcomes that end them."""

import shlex
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, LiteralString, NamedTuple, TypeVar

from airflow_provider_taskq.queue.arguments import to_integer
from airflow_provider_taskq.queue.connection import FunctionCaller
from airflow_provider_taskq.queue.errors import InvalidArgument, UnknownTopic
from airflow_provider_taskq.queue.models import Condition, Junction, State
from airflow_provider_taskq.queue.topic_status import (
    MAX_COUNT,
    TopicStatus,
    describe_group_wait,
    describe_ready_wait,
    describe_state_wait,
)

Outcome = TypeVar("Outcome")
Outcome_co = TypeVar("Outcome_co", covariant=True)

_UNKNOWN_TOPIC = -1

# Without junctures the query changes nothing. So it also runs on a standby, and with a role that may only read.
# Rows without news are left out, so that ten thousand topics without a ready task return no row.
_TASKS: LiteralString = (
    "SELECT kind, position, number, waited"
    " FROM taskq.watch_tasks(%b::text[], %b::int[], %b::text[], %b::boolean[], %b::text[], %b::text[])"
    " WHERE number IS NOT NULL AND (kind <> 'ready' OR number <> 0)"
)
_GROUPS: LiteralString = (
    " UNION ALL SELECT 'groups', position, number, NULL"
    " FROM taskq.watch_groups(%b::text[], %b::text[], %b::text[], %b::int[], %b::int[], %b::text[])"
    " WHERE number IS NOT NULL"
)
_COLUMNS = {"ready": 4, "state": 2, "groups": 3}


class Found(NamedTuple):
    """What a check found: a number of ready tasks, a state, or a number of incomplete groups; None if there is none.

    `waited` is for how many seconds the oldest due task has waited. What was found is not older than `checked_at`, a
    time of `time.monotonic()`.
    """

    number: int | None = None
    waited: float | None = None
    checked_at: float = 0.0


class Wait(ABC, Generic[Outcome_co]):
    """A wait on one topic, with valid arguments. Equal waits are checked once.

    `poll_interval` is the shortest time between two checks, in seconds.
    """

    topic: str
    poll_interval: float
    kind: str
    condition: str = "NONE"
    groups: tuple[tuple[str, ...], ...] = ()

    @property
    @abstractmethod
    def rows(self) -> tuple[tuple[Any, ...], ...]:
        """The arguments of the check, a row for each answer."""

    @abstractmethod
    def outcome(self, found: Sequence[Found]) -> Outcome_co | None:
        """Return the outcome, or None to wait on. Raises UnknownTopic."""

    @abstractmethod
    def describe(self, found: Sequence[Found], status: TopicStatus) -> str:
        """Return a sentence that says what the gate waits for, for logs and timeout errors."""


@dataclass(frozen=True, slots=True)
class ReadyWait(Wait[int]):
    """Waits for `min_tasks` ready tasks, or for one if the topic's oldest due task has waited `max_wait` seconds.

    The outcome is how many tasks are ready. The count may stop at `min_tasks`.
    """

    topic: str
    min_tasks: int = 1
    condition: str = "NONE"
    max_wait: float | None = None
    poll_interval: float = 1.0
    kind = "ready"

    def __post_init__(self) -> None:
        _require_texts([self.topic])
        to_integer(self.min_tasks, "min_tasks", 1)
        Condition.of(self.condition)

    @property
    def rows(self) -> tuple[tuple[Any, ...], ...]:
        """One row, which counts the ready tasks."""
        return ((self.topic, self.min_tasks, self.condition, self.max_wait is not None),)

    def outcome(self, found: Sequence[Found]) -> int | None:
        """Return how many tasks are ready if they end the wait."""
        (ready,) = found
        _require_topic(self.topic, found)
        overdue = self.max_wait is not None and ready.waited is not None and ready.waited >= self.max_wait
        return ready.number if ready.number and (ready.number >= self.min_tasks or overdue) else None

    def describe(self, found: Sequence[Found], status: TopicStatus) -> str:  # noqa: ARG002  of the base class
        """Return a sentence with the number of ready tasks and the status of the topic."""
        return describe_ready_wait(status, self.min_tasks, self.condition, self.max_wait)


@dataclass(frozen=True, slots=True)
class StateWait(Wait[dict[str, str | None]]):
    """Waits until the newest task of each identifier is in one of `states`, or one is in one of `failed_states`.

    The outcome is the state of each identifier, None for an identifier without a task.
    """

    topic: str
    identifiers: tuple[str, ...]
    states: frozenset[str]
    failed_states: frozenset[str]
    poll_interval: float = 1.0
    kind = "state"

    def __post_init__(self) -> None:
        _require_texts([self.topic, *self.identifiers])

    @property
    def rows(self) -> tuple[tuple[Any, ...], ...]:
        """One row for each identifier."""
        return tuple((self.topic, identifier) for identifier in self.identifiers)

    def outcome(self, found: Sequence[Found]) -> dict[str, str | None] | None:
        """Return the state of each identifier if the states end the wait."""
        _require_topic(self.topic, found)
        states = self._states(found)
        names = states.values()
        done = all(name in self.states for name in names) or any(name in self.failed_states for name in names)
        return states if done else None

    def describe(self, found: Sequence[Found], status: TopicStatus) -> str:
        """Return a sentence with the expected states, and the identifiers in other states."""
        return describe_state_wait(status, self._states(found), self.states)

    def _states(self, found: Sequence[Found]) -> dict[str, str | None]:
        names = [None if one.number in (None, _UNKNOWN_TOPIC) else State(one.number).name for one in found]
        return dict(zip(self.identifiers, names, strict=True))


@dataclass(frozen=True, slots=True)
class JunctureWait(Wait[int]):
    """Waits until each group of a named juncture is released. Each check releases the complete groups.

    The outcome is the number of groups.
    """

    name: str
    topic: str
    groups: tuple[tuple[str, ...], ...]
    junction: str = "SINGULAR"
    poll_interval: float = 1.0
    kind = "groups"

    def __post_init__(self) -> None:
        _require_texts([self.name, self.topic, *(identifier for group in self.groups for identifier in group)])
        Junction.of(self.junction)

    @property
    def rows(self) -> tuple[tuple[Any, ...], ...]:
        """One row, which releases the complete groups."""
        return ((self.name, self.topic, self.junction),)

    def outcome(self, found: Sequence[Found]) -> int | None:
        """Return the number of groups if all are released."""
        _require_topic(self.topic, found)
        return len(self.groups) if found[0].number == 0 else None

    def describe(self, found: Sequence[Found], status: TopicStatus) -> str:
        """Return a sentence with the number of groups, and how many of them are released."""
        return describe_group_wait(status, len(self.groups), found[0].number)


class WaitMixin(FunctionCaller):
    """The verbs that check waits."""

    def watch(self, waits: Collection[Wait[Any]]) -> dict[Wait[Any], list[Found]]:
        """Check any number of waits by one query, and release the complete groups of junctures.

        Return for each wait what `outcome` and `describe` read. Only junctures change something.
        """
        began = time.monotonic()
        found = {wait: [Found(checked_at=began)] * len(wait.rows) for wait in waits}
        asked = [(wait, part, row) for wait in found for part, row in enumerate(wait.rows)]
        by_kind = {kind: [each for each in asked if each[0].kind == kind] for kind in _COLUMNS}
        groups = [
            (place, number, identifier)
            for place, (wait, _, _) in enumerate(by_kind["groups"], start=1)
            for number, group in enumerate(wait.groups)
            for identifier in group
        ]
        columns = {
            kind: [[row[column] for _, _, row in by_kind[kind]] for column in range(width)]
            for kind, width in _COLUMNS.items()
        }
        call, arguments = _TASKS, [*columns["ready"], *columns["state"]]
        if by_kind["groups"]:
            call += _GROUPS
            arguments += [*columns["groups"], *([one[column] for one in groups] for column in range(3))]
        for kind, position, number, waited in self._rows(call, arguments):
            wait, part, _ = by_kind[kind][position - 1]
            found[wait][part] = Found(number, waited, began)
        return found

    def topic_statuses(
        self, topics: Sequence[tuple[str, Condition | str]], cap: int = MAX_COUNT
    ) -> dict[tuple[str, Condition | str], TopicStatus]:
        """Count as `topic_status` for pairs of a topic and a condition. Leave unknown topics out."""
        names, conditions = [topic for topic, _ in topics], [Condition.of(condition) for _, condition in topics]
        rows = self._rows(
            "SELECT position, ready, scheduled, retrying, blocked, paused, running, topic_paused, paused_by,"
            " paused_since FROM taskq.topic_status(%b::text[], %b::text[], %s::int)",
            (names, conditions, cap),
        )
        return {topics[position - 1]: TopicStatus(names[position - 1], *counts) for position, *counts in rows}

    def topic_status(
        self, topic: str, condition: Condition | str = Condition.NONE, cap: int = MAX_COUNT
    ) -> TopicStatus:
        """Count a topic's unfinished tasks by what keeps them from being polled, each status up to `cap`."""
        statuses = self.topic_statuses([(topic, condition)], cap)
        if not statuses:
            raise UnknownTopic(f"topic {topic!r} does not exist; create it with create_topic")
        return statuses[topic, condition]


def check_wait(queue: WaitMixin, wait: Wait[Outcome]) -> Outcome | None:
    """Check a wait once. Return its outcome, or None if it goes on. Raises UnknownTopic."""
    return wait.outcome(queue.watch([wait])[wait])


def describe_wait(queue: WaitMixin, wait: Wait[Any]) -> str:
    """Check a wait once, and describe it by the status of its topic. Raises UnknownTopic."""
    return wait.describe(queue.watch([wait])[wait], queue.topic_status(wait.topic, wait.condition))


def unknown_topic_error(topic: str) -> UnknownTopic:
    """Return the error for a topic that does not exist."""
    return UnknownTopic(f"topic {topic!r} does not exist; create it with: taskq topics create {shlex.quote(topic)}")


def _require_topic(topic: str, found: Sequence[Found]) -> None:
    if any(one.number == _UNKNOWN_TOPIC for one in found):
        raise unknown_topic_error(topic)


def _require_texts(texts: Iterable[str]) -> None:
    # In one query with other waits, such a text would fail all of them.
    for text in texts:
        if "\x00" in text or (not text.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in text)):
            raise InvalidArgument(f"invalid text {text!r:.50}: it holds a NUL or a lone surrogate")
