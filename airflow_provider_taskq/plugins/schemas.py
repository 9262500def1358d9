"""What a request may say: the parameters of views, and the bodies of actions."""

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import HTTPException, Query
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from airflow_provider_taskq.queue import State
from airflow_provider_taskq.queue.reports import TaskFilter

LARGEST = 2**63 - 1
MOST = 10_000  # tasks that one action changes
LONGEST = 2000

Sequence = Annotated[int, Field(ge=0, le=LARGEST)]
Place = Annotated[int | None, Query(ge=0, le=LARGEST)]
Size = Annotated[int, Query(ge=1, le=200)]
Text = Annotated[str | None, Query(max_length=LONGEST)]
Name = Annotated[str, Query(min_length=1, max_length=LONGEST)]
StateName = Literal[
    "ACTIVE", "READY", "EXPIRED", "FAILED", "SUSPENDED", "FILTERED", "SUCCEEDED", "RECREATED", "REDUNDANT"
]


class Body(BaseModel):
    """A body whose unknown fields are refused: a misspelt filter must not match everything."""

    model_config = ConfigDict(extra="forbid")


class Filter(Body):
    """Which tasks of a topic, as in the list of tasks; empty texts count as none."""

    state: StateName | None = None
    status: str | None = Field(None, max_length=LONGEST)
    identifier: str | None = Field(None, max_length=LONGEST)
    reference: str | None = Field(None, max_length=LONGEST)
    since: datetime | None = None
    until: datetime | None = None
    error: str | None = Field(None, max_length=LONGEST)
    error_group: str | None = Field(None, max_length=LONGEST)

    def for_queue(self) -> TaskFilter:
        """The same for the queue; refused where a moment has no time zone."""
        for moment in (self.since, self.until):
            if moment is not None and moment.utcoffset() is None:
                raise HTTPException(400, f"The time {moment.isoformat()} has no zone: write Z or +00:00 after it.")
        state = State[self.state] if self.state else None
        return TaskFilter(
            state,
            self.status or None,
            self.identifier or None,
            self.reference or None,
            self.since,
            self.until,
            self.error or None,
            self.error_group or None,
        )

    def in_words(self) -> str:
        """The filter for the trail."""
        given = self.model_dump(mode="json", exclude_none=True)
        return ", ".join(f"{name} {value}" for name, value in given.items()) or "all that have ended"


class Reveal(Body):
    """Whose payload and output to see."""

    topic: str
    sequence: Sequence


class Asked(Body):
    """An action, on named tasks, on all that match a filter, or on a topic."""

    action: Literal[
        "retry",
        "reassign",
        "release",
        "push",
        "pause",
        "resume",
        "purge",
        "expire",
        "run_now",
        "set_priority",
        "cancel",
    ]
    topic: str | None = Field(None, max_length=LONGEST)
    sequences: Annotated[list[Sequence], Field(min_length=1, max_length=MOST)] | None = None
    filter: Filter | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    confirm: bool = False
    expected: int | None = None
    token: int | None = None


def sentence_of(error: ValidationError, of: str = "") -> str:
    """The first thing that is wrong with what was asked, without the value: it may be a payload."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{of}{place or 'The request'}: {first['msg']}."
