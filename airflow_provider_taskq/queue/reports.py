"""Filters and results of the inspection verbs: conditions on tasks, rows of reports, health findings."""

from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from airflow_provider_taskq.queue.models import NamedEnum, State

# The statuses of filters, counts, the page and the command line. `failed` includes `exhausted`.
STATE_OF_STATUS = {
    **dict.fromkeys(("ready", "scheduled", "blocked", "paused", "retrying"), State.READY),
    "running": State.ACTIVE,
    **{state.name.lower(): state for state in State if state not in (State.ACTIVE, State.READY)},
    "exhausted": State.FAILED,
}

# The label `state` of the metrics of a topic's depth, and the column of `browse_topics` that counts it.
DEPTH_COLUMNS = {
    "ready": "ready",
    "scheduled": "scheduled",
    "retrying": "retrying",
    "blocked": "blocked",
    "paused": "paused_tasks",
    "running": "running",
    "failed": "failed",
    "suspended": "suspended",
    "expired": "expired",
}

Row: TypeAlias = Any
"""A row of a report: a named tuple with the columns of the SQL function that the verb calls.

The `COMMENT` of the function describes the columns. `state` and `descent` are members of State.
"""


class Severity(NamedEnum, IntEnum):
    """The severity of a health finding; a worse one is greater."""

    FINE = 0
    NOTICE = 1
    WARNING = 2
    CRITICAL = 3


class HealthFinding(NamedTuple):
    """A measured condition that slows or threatens the queue, or would do so at a higher value.

    `detail` is a sentence. `value` is the measured number of seconds, rows, bytes or transactions in that sentence, and
    `pid` the server's session in question. `topic`, `sequence` and `owner` are set if the finding is about a topic, a
    task or an owner. `remedy` is a command of `taskq` or an SQL statement that ends the condition or shows its cause;
    None if the finding is fine, or if no command helps.
    """

    severity: Severity
    subject: str
    detail: str
    value: int | None
    pid: int | None
    topic: str | None = None
    sequence: int | None = None
    owner: str | None = None
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Conditions on tasks of a topic, all of which have to hold; None is no condition.

    `status` is one of STATE_OF_STATUS; `exhausted` is FAILED without attempts left. `since` and `until` bound the push,
    both included. The task's error contains `error`, in any case, and belongs to `error_group` (a row of
    `error_groups`); without a state these two search EXPIRED, FAILED and SUSPENDED tasks. `pushed_with` is the sequence
    of a task that the same transaction pushed.
    """

    state: State | None = None
    status: str | None = None
    identifier: str | None = None
    reference: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    error: str | None = None
    error_group: str | None = None
    pushed_with: int | None = None


class FoundTasks(NamedTuple):
    """Tasks that a search found. `looked_to` is where it stopped, as the `after` of the next page; None at the end."""

    sequences: list[int]
    looked_to: int | None


def report_row(cursor: Any) -> Callable[[Sequence[Any]], Row]:
    """Create the rows of a report, like psycopg's `namedtuple_row`, with members of State for numbers of states."""
    names = tuple(column.name for column in cursor.description)
    make = _row_class(names)
    states = [place for place, name in enumerate(names) if name in ("state", "descent")]

    def make_row(values: Sequence[Any]) -> Row:
        row = list(values)
        for place in states:
            row[place] = State(row[place]) if isinstance(row[place], int) else row[place]
        return make(*row)

    return make_row


@cache  # a new class costs more than a call of the database
def _row_class(names: tuple[str, ...]) -> Any:
    return type("Row", (namedtuple("Row", names),), {"__slots__": (), "__repr__": _without_texts})


def _without_texts(row: Any) -> str:
    """Show a row without what may be private, as a log would."""
    shown = (f"{name}={value!r}" for name, value in row._asdict().items() if name not in ("payload", "output"))
    return f"Row({', '.join(shown)})"
