"""Which tasks an action is about: those that it names, or those that a filter finds now."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from airflow_provider_taskq.plugins.schemas import MOST, Asked
from airflow_provider_taskq.plugins.session import ACTION_SECONDS, Refusal
from airflow_provider_taskq.queue import State, TaskQueue
from airflow_provider_taskq.queue.reports import TaskFilter

BUDGET = 200_000  # rows that are looked at for one action
ENDED = (State.EXPIRED, State.FAILED, State.SUSPENDED, State.FILTERED, State.SUCCEEDED)
WAITING = (State.READY,)
TROUBLED = (State.EXPIRED, State.FAILED, State.SUSPENDED)
# What there is most of comes first: with enough of it found, the others are not looked through.
PURGED = (State.SUCCEEDED, State.FAILED, State.SUSPENDED, State.FILTERED, State.RECREATED, State.REDUNDANT)
_OF_STATUS = {"exhausted": State.FAILED, "running": State.ACTIVE} | {
    state.name.lower(): state for state in State if state not in (State.READY, State.ACTIVE)
}


@dataclass(frozen=True, slots=True)
class Target:
    """Tasks of a topic; `by_filter`: found a moment ago, in these states, and `more` may match beyond them."""

    topic: str
    sequences: Sequence[int]
    states: Sequence[State]
    by_filter: bool
    more: bool


def topic_of(asked: Asked) -> str:
    """The topic that an action has to name."""
    if not asked.topic:
        raise Refusal(400, f"To {asked.action}, name the topic.")
    return asked.topic


def target(queue: TaskQueue, asked: Asked, states: Sequence[State]) -> Target:
    """The tasks that an action on these states is about; refused where it names none, or them in two ways."""
    topic = topic_of(asked)
    if (asked.sequences is None) == (asked.filter is None):
        raise Refusal(400, "Name the tasks either by their sequences or by a filter.")
    if asked.sequences is not None:
        return Target(topic, sorted(set(asked.sequences)), states, by_filter=False, more=False)
    assert asked.filter is not None  # noqa: S101  for the type checker
    given = asked.filter.for_queue()
    wanted = _states(given, states, asked.action)
    found = _find(queue, topic, given, wanted)
    target = Target(topic, found[:MOST], wanted, by_filter=True, more=len(found) > MOST)
    if asked.confirm:
        _check_expected(target, asked.expected)
    return target


def _states(given: TaskFilter, states: Sequence[State], action: str) -> Sequence[State]:
    """The states that a filter is about: those that it names, or for a purge all that have ended."""
    named = given.state if given.state is not None else _state_of(given.status)
    if named is not None:
        if named not in states:
            allowed = ", ".join(state.name for state in states)
            raise Refusal(400, f"To {action}, filter tasks by one of the states {allowed}, not {named.name}.")
        return [named]
    if action == "purge":
        return PURGED
    if states == WAITING:
        return WAITING
    if given.error is not None or given.error_group is not None:
        return TROUBLED
    raise Refusal(400, f"To {action} all that match, name their state.")


def _state_of(status: str | None) -> State | None:
    """The state that tasks of a status are in."""
    if status is None:
        return None
    return _OF_STATUS.get(status, State.READY)


def _find(queue: TaskQueue, topic: str, given: TaskFilter, states: Sequence[State]) -> list[int]:
    """The lowest sequences, one more than an action takes, state by state; refused where that looks at too much."""
    found: list[int] = []
    deadline = time.monotonic() + ACTION_SECONDS
    for state in states:
        if len(found) > MOST:
            break
        one = replace(given, state=state)
        page = queue.find_tasks(topic, one, newest=False, size=MOST + 1 - len(found), budget=BUDGET)
        found += page.sequences
        while page.looked_to is not None and len(found) <= MOST:
            if time.monotonic() > deadline:
                raise Refusal(503, "That looks at too much: narrow it by state, since or until.")
            page = queue.find_tasks(
                topic, one, newest=False, after=page.looked_to, size=MOST + 1 - len(found), budget=BUDGET
            )
            found += page.sequences
    return found


def _check_expected(target: Target, expected: int | None) -> None:
    """Refuses to do more than somebody has seen and confirmed."""
    if expected is None:
        raise Refusal(400, "Say in `expected` how many tasks the preview told.")
    if len(target.sequences) > expected:
        raise Refusal(409, f"{len(target.sequences)} tasks match now, and {expected} did when you looked: look again.")
