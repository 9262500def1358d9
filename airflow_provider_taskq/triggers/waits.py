"""Waits: what gates wait for, the queries that check it, the outcomes that end a wait, and the log of a wait."""

import logging
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from airflow_provider_taskq.queue import State, TopicStatus, UnknownTopic
from airflow_provider_taskq.queue.topic_status import describe_group_wait, describe_ready_wait, describe_state_wait

Outcome_co = TypeVar("Outcome_co", covariant=True)

# Seconds between log lines that differ in counts only. They double up to the maximum, so that a log stays small.
_FIRST_LOG_INTERVAL = 10.0
_MAX_LOG_INTERVAL = 300.0


class QueryResult(NamedTuple):
    """The answer of taskq.watch_tasks or taskq.watch_groups to a query.

    The number is a count of ready tasks, a state, or a count of incomplete groups. `waited` is for how many seconds the
    oldest due task has waited. Both are None without an answer.
    """

    number: int | None
    waited: float | None
    started_at: float = 0.0  # when the SQL query began, by time.monotonic(): the result is not older
    topic_existed: bool = False  # whether an earlier query found a topic that is unknown now


NO_RESULT = QueryResult(None, None)
UNKNOWN_TOPIC = -1


@dataclass(frozen=True, slots=True)
class ReadyQuery:
    """A query for the number of tasks of a topic that can be polled under a condition."""

    topic: str
    condition: str


@dataclass(frozen=True, slots=True)
class StateQuery:
    """A query for the state of the newest task of an identifier."""

    topic: str
    identifier: str


@dataclass(frozen=True, slots=True)
class JunctureQuery:
    """A query that releases the complete groups of a named juncture, and counts the incomplete groups."""

    name: str
    topic: str
    groups: tuple[tuple[str, ...], ...]
    junction: str


Query = ReadyQuery | StateQuery | JunctureQuery


class Wait(Protocol[Outcome_co]):
    """A wait on one topic. Equal waits share one subscription: the watcher evaluates and ends them together."""

    @property
    def topic(self) -> str:
        """The topic, whose notifications wake the wait."""

    @property
    def poll_interval(self) -> float:
        """The shortest time between two checks, in seconds."""

    @property
    def condition(self) -> str:
        """The condition under which `describe` counts the tasks of the topic."""

    @property
    def queries(self) -> tuple[Query, ...]:
        """The queries of one check."""

    def outcome(self, results: Sequence[QueryResult]) -> Outcome_co | None:
        """Return the outcome, or None to continue to wait. `results` has one entry for each query."""

    def describe(self, results: Sequence[QueryResult], status: TopicStatus) -> str:
        """Return a sentence that says what the gate waits for, for logs and timeout errors."""


@dataclass(frozen=True, slots=True)
class ReadyWait:
    """Waits for `min_tasks` ready tasks, or for one if the topic's oldest due task has waited `max_wait` seconds."""

    topic: str
    min_tasks: int = 1
    condition: str = "NONE"
    max_wait: float | None = None
    poll_interval: float = 1.0

    @property
    def queries(self) -> tuple[Query, ...]:
        """One query, which counts the ready tasks."""
        return (ReadyQuery(self.topic, self.condition),)

    def outcome(self, results: Sequence[QueryResult]) -> int | None:
        """Return how many tasks are ready if they end the wait. The count may stop at `min_tasks`."""
        (result,) = results
        if not result.number:
            return None
        _require_topic(self.topic, result)
        overdue = self.max_wait is not None and result.waited is not None and result.waited >= self.max_wait
        return result.number if result.number >= self.min_tasks or overdue else None

    def describe(self, results: Sequence[QueryResult], status: TopicStatus) -> str:  # noqa: ARG002  of the protocol
        """Return a sentence with the number of ready tasks and the status of the topic."""
        return describe_ready_wait(status, self.min_tasks, self.condition, self.max_wait)


@dataclass(frozen=True, slots=True)
class StateWait:
    """Waits until the newest task of each identifier is in one of `states`, or one is in one of `failed_states`."""

    topic: str
    identifiers: tuple[str, ...]
    states: frozenset[str]
    failed_states: frozenset[str]
    poll_interval: float = 1.0
    condition: str = "NONE"

    @property
    def queries(self) -> tuple[Query, ...]:
        """One query for the state of each identifier."""
        return tuple(StateQuery(self.topic, identifier) for identifier in self.identifiers)

    def outcome(self, results: Sequence[QueryResult]) -> dict[str, str | None] | None:
        """Return the state of each identifier if the states end the wait; None for an identifier without a task."""
        for result in results:
            _require_topic(self.topic, result)
        states = self._states_by_identifier(results)
        names = states.values()
        done = all(name in self.states for name in names) or any(name in self.failed_states for name in names)
        return states if done else None

    def describe(self, results: Sequence[QueryResult], status: TopicStatus) -> str:
        """Return a sentence with the expected states, and the identifiers in other states."""
        return describe_state_wait(status, self._states_by_identifier(results), self.states)

    def _states_by_identifier(self, results: Sequence[QueryResult]) -> dict[str, str | None]:
        return {
            identifier: None if result.number is None or result.number == UNKNOWN_TOPIC else State(result.number).name
            for identifier, result in zip(self.identifiers, results, strict=True)
        }


@dataclass(frozen=True, slots=True)
class JunctureWait:
    """Waits until each group of a named juncture is released. Each check releases the complete groups."""

    name: str
    topic: str
    groups: tuple[tuple[str, ...], ...]
    junction: str = "SINGULAR"
    poll_interval: float = 1.0
    condition: str = "NONE"

    @property
    def queries(self) -> tuple[Query, ...]:
        """One query, which releases the complete groups."""
        return (JunctureQuery(self.name, self.topic, self.groups, self.junction),)

    def outcome(self, results: Sequence[QueryResult]) -> int | None:
        """Return the number of groups if all are released."""
        _require_topic(self.topic, results[0])
        return len(self.groups) if results[0].number == 0 else None

    def describe(self, results: Sequence[QueryResult], status: TopicStatus) -> str:
        """Return a sentence with the number of groups, and how many of them are released."""
        return describe_group_wait(status, len(self.groups), results[0].number)


class WaitLog:
    """Logs what one task waits for, and each change.

    All lines have the context in which the WaitLog was created. Airflow's triggerer finds the log file of a line by
    context variables of the trigger's asyncio task, and the watcher reports changes from another asyncio task.
    """

    def __init__(self, logger: logging.Logger | Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._context = copy_context()
        self._description: str | None = None
        self._pause: str | None = None
        self._error: str | None = None
        self._interval = _FIRST_LOG_INTERVAL
        self._next_line_at = 0.0

    @property
    def state(self) -> dict[str, Any]:
        """The values logged last, for a later process of the same wait. Empty before the first line."""
        logged = {"description": self._description, "pause": self._pause, "error": self._error}
        return {name: text for name, text in logged.items() if text is not None}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue the log of an earlier process of the same wait."""
        self._description, self._pause, self._error = (state.get(name) for name in ("description", "pause", "error"))

    def log_status(self, description: str, status: TopicStatus) -> None:
        """Log the description if it changed. A change of counts alone may wait for a later call."""
        now = self._clock()
        counts_only = self._description is not None and status.pause == self._pause
        if description == self._description or (counts_only and now < self._next_line_at):
            return
        if counts_only:
            self._interval = min(2 * self._interval, _MAX_LOG_INTERVAL)
        self._description, self._pause, self._next_line_at = description, status.pause, now + self._interval
        self._context.run(self._logger.info, "%s", description)

    def log_error(self, error: str) -> None:
        """Log that a check failed, unless the last line has the same error."""
        if error != self._error:
            self._error = error
            self._context.run(self._logger.warning, "Cannot check the gate, will retry: error=%s", error)

    def log_recovery(self) -> None:
        """Log that a check succeeded, if the previous one failed."""
        if self._error is not None:
            self._error = None
            self._context.run(self._logger.info, "Can check the gate again")


def unknown_topic_error(topic: str, *, existed: bool = False) -> UnknownTopic:
    """Return the error for a topic that does not exist, or that was dropped if it `existed` before."""
    problem = "was dropped; create it again" if existed else "does not exist; create it"
    return UnknownTopic(f"topic {topic!r} {problem} with: taskq topics create {shlex.quote(topic)}")


def _require_topic(topic: str, result: QueryResult) -> None:
    if result.number == UNKNOWN_TOPIC:
        raise unknown_topic_error(topic, existed=result.topic_existed)
