"""What each action does, and how it says so. All of them run in a transaction that the caller commits, or not."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AwareDatetime, Field, ValidationError

from airflow_provider_taskq.plugins.schemas import MOST, Asked, Body, sentence_of
from airflow_provider_taskq.plugins.session import Refusal
from airflow_provider_taskq.plugins.targets import ENDED, PURGED, WAITING, Target, target, topic_of
from airflow_provider_taskq.queue import Insertion, NewTask, Result, Revival, State, TaskQueue
from airflow_provider_taskq.queue.reports import TaskFilter

NAMED = 20  # sequences that the trail names
LONGEST_SECONDS = 3650 * 86_400  # of a duration: as the queue stores them (sql/internal/validation.sql)
LEASES = 1000  # to which lapsed leases are counted
_TOO_GREAT = "The payload has a number outside the range of a double: write it as a text."
PURGEABLE = (State.READY, State.EXPIRED, *PURGED)


@dataclass(frozen=True, slots=True)
class Deed:
    """What was done, or would be: to how many, a sentence, words for the trail, and whether more match.

    `token` tells a preview's subject from another of the same name: it comes back with the confirmation.
    """

    count: int
    sentence: str
    what: str
    more: bool = False
    token: int | None = None


class _Retry(Body):
    revival: Literal["RESET", "APPEND", "SUPERSEDE", "REPLACE"] = "RESET"


class _Reassign(Body):
    result: Literal["FAILURE", "SUSPENSION", "FILTER", "SUCCESS"]


class _Release(Body):
    owner: str


class _Expire(Body):
    grace_seconds: float = Field(0, ge=0, le=10**9)


class _Push(Body):
    identifier: str
    payload: str | None = None
    reference: str | None = None
    priority: int = Field(0, ge=-100, le=100)
    delay_seconds: float | None = Field(None, ge=0, le=LONGEST_SECONDS)
    available_at: AwareDatetime | None = None
    ttl_seconds: float | None = Field(None, ge=0, le=LONGEST_SECONDS)
    suspended: bool = False
    insertion: Literal["APPEND", "SUPERSEDE", "REPLACE", "DELETE"] = "APPEND"
    depends_on: list[Annotated[list[str], Field(min_length=2, max_length=2)]] = Field(default_factory=list)


class _Priority(Body):
    priority: int = Field(0, ge=-100, le=100)


class _Nothing(Body):
    """No options."""


Options = TypeVar("Options", bound=Body)


def _options(kind: type[Options], asked: Asked) -> Options:
    """An action's options; what is wrong with them in a sentence, without their values."""
    try:
        return kind.model_validate(asked.options)
    except ValidationError as error:
        raise Refusal(400, sentence_of(error, f"Option of {asked.action}: ")) from None


def retry(queue: TaskQueue, asked: Asked, *, dry: bool) -> Deed:
    """Starts ended tasks anew."""
    revival = Revival[_options(_Retry, asked).revival]
    tasks = target(queue, asked, ENDED)
    number = _on(queue, tasks, dry, lambda chosen: len(queue.revive(tasks.topic, None, revival, sequences=chosen)))
    how = {
        Revival.RESET: "in their old places",
        Revival.APPEND: "as copies at the end",
        Revival.SUPERSEDE: "as copies that make older ones that wait redundant",
        Revival.REPLACE: "as copies that make all older ones redundant",
    }[revival]
    sentence = f"{_tasks(number)} of {tasks.topic} to be worked on again, {how}"
    return Deed(number, sentence, f"{revival} of {_which(asked)}", tasks.more)


def reassign(queue: TaskQueue, asked: Asked, *, dry: bool) -> Deed:
    """Gives ended tasks another result."""
    result = Result[_options(_Reassign, asked).result]
    tasks = target(queue, asked, ENDED)
    number = _on(queue, tasks, dry, lambda chosen: queue.reassign(tasks.topic, result, sequences=chosen))
    sentence = f"{_tasks(number)} of {tasks.topic} to have the result {result.name}"
    return Deed(number, sentence, f"{result.name} for {_which(asked)}", tasks.more)


def purge(queue: TaskQueue, asked: Asked, *, dry: bool) -> Deed:
    """Removes tasks for good."""
    _options(_Nothing, asked)
    tasks = target(queue, asked, PURGEABLE)
    if dry and tasks.by_filter:
        number = len(tasks.sequences)
    else:
        number = queue.purge_sequences(tasks.topic, tasks.sequences, tasks.states)
    sentence = f"{_tasks(number)} of {tasks.topic} to be removed for good; what is held stays"
    return Deed(number, sentence, _which(asked), tasks.more)


def run_now(queue: TaskQueue, asked: Asked, *, dry: bool) -> Deed:
    """Makes READY tasks due now."""
    _options(_Nothing, asked)
    tasks = target(queue, asked, WAITING)
    number = _on(queue, tasks, dry, lambda chosen: queue.run_now(tasks.topic, chosen))
    sentence = f"{_tasks(number)} of {tasks.topic} to be due now; what is due already stays as it is"
    return Deed(number, sentence, _which(asked), tasks.more)


def set_priority(queue: TaskQueue, asked: Asked, *, dry: bool) -> Deed:
    """Changes the priority of READY tasks."""
    priority = _options(_Priority, asked).priority
    tasks = target(queue, asked, WAITING)
    number = _on(queue, tasks, dry, lambda chosen: queue.set_priority(tasks.topic, chosen, priority))
    sentence = f"{_tasks(number)} of {tasks.topic} to have the priority {priority}"
    return Deed(number, sentence, f"priority {priority} for {_which(asked)}", tasks.more)


def cancel(queue: TaskQueue, asked: Asked, *, dry: bool) -> Deed:
    """Ends READY tasks without running them."""
    _options(_Nothing, asked)
    tasks = target(queue, asked, WAITING)
    number = _on(queue, tasks, dry, lambda chosen: queue.cancel(tasks.topic, chosen))
    sentence = f"{_tasks(number)} of {tasks.topic} to be FILTERED without being run; a retry takes it back"
    return Deed(number, sentence, _which(asked), tasks.more)


def release(queue: TaskQueue, asked: Asked, *, dry: bool) -> Deed:  # noqa: ARG001  the caller rolls back
    """Ends an owner's lease, and gives back what it holds."""
    name = _options(_Release, asked).owner
    owner = queue.owner(name)
    if owner is None:
        raise Refusal(409, f"{name} has no lease to end: it is gone already, or was never registered.")
    if asked.confirm and asked.token not in (None, owner.fence):
        raise Refusal(409, f"{name} has registered anew since you looked: look again.")
    number = queue.release(owner)
    sentence = f"{_tasks(number)} of {name} to be handed out to others, and its lease to end"
    return Deed(number, sentence, f"owner {name}", token=owner.fence)


def expire(queue: TaskQueue, asked: Asked, *, dry: bool) -> Deed:  # noqa: ARG001  the caller rolls back
    """Takes lapsed leases with what is held under them."""
    grace = timedelta(seconds=_options(_Expire, asked).grace_seconds)
    owners, _ = queue.count_lapsed(grace)
    number = queue.expire(grace)
    leases = f"{owners:,}{'+' if owners >= LEASES else ''} lapsed lease{'s' if owners != 1 else ''}"
    return Deed(number, f"{leases} to be taken, with {_tasks(number)}", f"{leases}, grace {grace}")


def push(queue: TaskQueue, asked: Asked, *, dry: bool) -> Deed:  # noqa: ARG001  the caller rolls back
    """Pushes one task."""
    topic, given = topic_of(asked), _options(_Push, asked)
    task = NewTask(
        given.identifier,
        _payload(given.payload),
        reference=given.reference or None,
        suspended=given.suspended,
        available_at=given.available_at,
        delay=_duration(given.delay_seconds),
        ttl=_duration(given.ttl_seconds),
        priority=given.priority,
        depends_on=[(one, other) for one, other in given.depends_on],
    )
    also = _displaced(queue, topic, given)
    pushed = queue.push(topic, [task], Insertion[given.insertion])
    what = f"{given.identifier} by {given.insertion}" + (f", sequence {pushed[0].sequence}" if pushed else "")
    return Deed(len(pushed), f"{given.identifier} to be pushed to {topic}{also}", what + also)


def pause(queue: TaskQueue, asked: Asked, *, dry: bool) -> Deed:  # noqa: ARG001  the caller rolls back
    """Lets a topic hand out nothing."""
    topic = topic_of(asked)
    _options(_Nothing, asked)
    changed = int(queue.pause_topic(topic))
    return Deed(changed, f"{topic} to hand out nothing until it is resumed{_already(changed)}", f"topic {topic}")


def resume(queue: TaskQueue, asked: Asked, *, dry: bool) -> Deed:  # noqa: ARG001  the caller rolls back
    """Lets a paused topic hand out tasks again."""
    topic = topic_of(asked)
    _options(_Nothing, asked)
    changed = int(queue.resume_topic(topic))
    return Deed(changed, f"{topic} to hand out tasks again{_already(changed)}", f"topic {topic}")


Doing = Callable[..., Deed]
DOINGS: dict[str, Doing] = {
    each.__name__: each
    for each in (retry, reassign, purge, release, expire, push, pause, resume, run_now, set_priority, cancel)
}


def _displaced(queue: TaskQueue, topic: str, given: _Push) -> str:
    """What a push does to older tasks of its identifier, in words; counted to what one action may change."""
    if given.insertion == "APPEND":
        return ""
    older = len(queue.find_tasks(topic, TaskFilter(identifier=given.identifier), newest=False, size=MOST).sequences)
    which = "wait" if given.insertion == "SUPERSEDE" else "wait or have ended"
    fate = "deleted for good" if given.insertion == "DELETE" else "made REDUNDANT"
    return f"; of {older:,} older tasks of this identifier those that {which} are {fate}" if older else ""


def _on(queue: TaskQueue, tasks: Target, dry: bool, change: Callable[[list[int]], int]) -> int:
    """Changes the tasks; of those that a filter found, those that are still so and nobody else's right now."""
    if not tasks.by_filter:
        return change(list(tasks.sequences))
    if dry:
        return len(tasks.sequences)
    held = queue.lock_tasks(tasks.topic, tasks.sequences, tasks.states)
    return change(held) if held else 0


def _tasks(number: int) -> str:
    return "1 task" if number == 1 else f"{number:,} tasks"


def _already(changed: int) -> str:
    return "" if changed else " (it is so already)"


def _which(asked: Asked) -> str:
    """The tasks in words, for the trail."""
    if asked.filter is not None:
        return asked.filter.in_words()
    named = asked.sequences or []
    return f"sequences {', '.join(map(str, named[:NAMED]))}{', ...' if len(named) > NAMED else ''}"


def _duration(given: float | None) -> timedelta | None:
    return None if given is None else timedelta(seconds=given)


def _payload(text: str | None) -> Any:
    """The payload that a form's text is; what is wrong with it, by line and column."""
    if text is None or not text.strip():
        return None
    try:
        return json.loads(text, parse_float=_exact)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise Refusal(400, f"The payload is not JSON: {error.msg} ({where}).") from None
    except RecursionError:
        raise Refusal(400, "The payload is nested deeper than 100 levels.") from None
    except ValueError:  # an integer of more digits than Python converts
        raise Refusal(400, _TOO_GREAT) from None


def _exact(text: str) -> float:
    """A number as it was typed; one that would be stored as another is refused."""
    value = float(text)
    if math.isinf(value):
        raise Refusal(400, _TOO_GREAT)
    try:
        exact = Decimal(repr(value)) == Decimal(text)
    except ArithmeticError:  # the exponent is too large even for Decimal
        exact = False
    if not exact:
        raise Refusal(400, "The payload has a number that would be rounded: write it as a text.")
    return value
