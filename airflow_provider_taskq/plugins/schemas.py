"""Requests of the API: parameters of views, and bodies and options of actions."""

import json
import math
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal

from fastapi import HTTPException, Query
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from airflow_provider_taskq.queue import NewTask, State, TaskFilter
from airflow_provider_taskq.queue.encoding import MAX_STORED_DURATION
from airflow_provider_taskq.queue.selection import MAX_TASKS

MAX_SEQUENCE = 2**63 - 1
MAX_TEXT = 2000  # characters

Sequence = Annotated[int, Field(ge=0, le=MAX_SEQUENCE)]
Place = Annotated[int | None, Query(ge=0, le=MAX_SEQUENCE)]
Size = Annotated[int, Query(ge=1, le=200)]
Text = Annotated[str | None, Query(max_length=MAX_TEXT)]
Name = Annotated[str, Query(min_length=1, max_length=MAX_TEXT)]
StateName = Literal[
    "ACTIVE", "READY", "EXPIRED", "FAILED", "SUSPENDED", "FILTERED", "SUCCEEDED", "RECREATED", "REDUNDANT"
]


ActionName = Literal[
    "retry", "reassign", "purge", "run_now", "set_priority", "cancel", "release", "expire", "push", "pause", "resume"
]


class Body(BaseModel):
    """A body that refuses unknown fields, so that a misspelled filter does not match every task."""

    model_config = ConfigDict(extra="forbid")


class ErrorDocument(BaseModel):
    """The answer to a request that failed: a sentence for the user."""

    error: str


class Filter(Body):
    """The filter of the list of tasks. Empty texts count as absent."""

    state: StateName | None = None
    status: str | None = Field(None, max_length=MAX_TEXT)
    identifier: str | None = Field(None, max_length=MAX_TEXT)
    reference: str | None = Field(None, max_length=MAX_TEXT)
    since: datetime | None = None
    until: datetime | None = None
    error: str | None = Field(None, max_length=MAX_TEXT)
    error_group: str | None = Field(None, max_length=MAX_TEXT)

    def for_queue(self) -> TaskFilter:
        """Return the filter of the queue. A moment without a time zone is an error with status 400."""
        for moment in (self.since, self.until):
            require_zone(moment)
        return TaskFilter(
            State[self.state] if self.state else None,
            self.status or None,
            self.identifier or None,
            self.reference or None,
            self.since,
            self.until,
            self.error or None,
            self.error_group or None,
        )


def require_zone(moment: datetime | None) -> None:
    """Raise an error with status 400 for a moment without a time zone."""
    if moment is not None and moment.utcoffset() is None:
        raise HTTPException(400, f"The time {moment.isoformat()} has no zone: write Z or +00:00 after it.")


class RevealRequest(Body):
    """The task whose payload and output the page shows."""

    topic: str
    sequence: Sequence


class ActionRequest(Body):
    """An action on tasks by sequence, on the tasks that match a filter, on a topic, or on an owner.

    Without `confirm` the action is previewed. `expected` and `token` come from the preview.
    """

    action: ActionName
    topic: str | None = Field(None, max_length=MAX_TEXT)
    sequences: Annotated[list[Sequence], Field(min_length=1, max_length=MAX_TASKS)] | None = None
    filter: Filter | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    confirm: bool = False
    expected: int | None = None
    token: int | None = None


class RetryOptions(Body):
    """How ended tasks start again."""

    revival: Literal["RESET", "APPEND", "SUPERSEDE", "REPLACE"] = "RESET"


class ReassignOptions(Body):
    """The new result of ended tasks."""

    result: Literal["FAILURE", "SUSPENSION", "FILTER", "SUCCESS"]


class ReleaseOptions(Body):
    """The owner whose lease ends."""

    owner: str


class ExpireOptions(Body):
    """The time since a lease lapsed during which `expire` spares the lease."""

    grace_seconds: float = Field(0, ge=0, le=10**9)


class PriorityOptions(Body):
    """The new priority of waiting tasks."""

    priority: int = Field(0, ge=-100, le=100)


class NoOptions(Body):
    """The options of an action that has none."""


_STORABLE_SECONDS = MAX_STORED_DURATION.total_seconds()


class PushFormOptions(Body):
    """A new task; `payload` is JSON text."""

    identifier: str
    payload: str | None = None
    reference: str | None = None
    priority: int = Field(0, ge=-100, le=100)
    delay_seconds: float | None = Field(None, ge=0, le=_STORABLE_SECONDS)
    available_at: AwareDatetime | None = None
    ttl_seconds: float | None = Field(None, ge=0, le=_STORABLE_SECONDS)
    suspended: bool = False
    insertion: Literal["APPEND", "SUPERSEDE", "REPLACE", "DELETE"] = "APPEND"
    depends_on: list[Annotated[list[str], Field(min_length=2, max_length=2)]] = Field(default_factory=list)

    def new_task(self) -> NewTask:
        """Return the task to push."""
        return NewTask(
            self.identifier,
            _parse_payload(self.payload),
            reference=self.reference or None,
            suspended=self.suspended,
            available_at=self.available_at,
            delay=None if self.delay_seconds is None else timedelta(seconds=self.delay_seconds),
            ttl=None if self.ttl_seconds is None else timedelta(seconds=self.ttl_seconds),
            priority=self.priority,
            depends_on=[(topic, identifier) for topic, identifier in self.depends_on],
        )


_OUT_OF_RANGE = "The payload has a number outside the range of a double: write it as a text."


def _parse_payload(text: str | None) -> Any:
    if text is None or not text.strip():
        return None
    try:
        return json.loads(text, parse_float=_exact_float)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise HTTPException(400, f"The payload is not JSON: {error.msg} ({place}).") from None
    except RecursionError:
        raise HTTPException(400, "The payload is nested deeper than 100 levels.") from None
    except ValueError:  # an integer of more digits than Python converts
        raise HTTPException(400, _OUT_OF_RANGE) from None


def _exact_float(text: str) -> float:
    """Return a number as typed. A number that a float would round is an error with status 400."""
    value = float(text)
    if math.isinf(value):
        raise HTTPException(400, _OUT_OF_RANGE)
    try:
        exact = Decimal(repr(value)) == Decimal(text)
    except ArithmeticError:  # the exponent is too large even for Decimal
        exact = False
    if not exact:
        raise HTTPException(400, "The payload has a number that would be rounded: write it as a text.")
    return value


def describe_validation_error(error: ValidationError, prefix: str = "") -> str:
    """Describe the first error of a request, without the value because it may be a payload."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{prefix}{place or 'The request'}: {first['msg']}."
