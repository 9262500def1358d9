"""Between Python values and what crosses the wire: intervals, JSON texts, rows."""

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow_provider_taskq.queue.decoding import MAX_DEPTH, json_defect
from airflow_provider_taskq.queue.models import Json, Owner, State, Task, TaskInfo

MOST = timedelta(days=100_000_000)

_COMPACT = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def interval_text(duration: timedelta | None) -> str | None:
    """A duration for PostgreSQL, in microseconds: a "day" there would be 23 or 25 hours twice a year.

    A duration that PostgreSQL cannot add to a moment is cut: the functions refuse or clamp what is far shorter.
    """
    if duration is None:
        return None
    return f"{max(-MOST, min(duration, MOST)) // timedelta(microseconds=1)} microseconds"


def json_text(value: Json) -> str | None:
    """A value as compact JSON, None as none; ValueError with the reason for what not every client can read back."""
    if value is None:
        return None
    try:
        text = _COMPACT.encode(value)
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("holds a lone surrogate") from None
    except RecursionError:
        raise ValueError(f"is nested deeper than {MAX_DEPTH} levels, or than the stack has room for") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    if defect := json_defect(text):
        raise ValueError(defect)
    return text


def state_number(state: State | str | None) -> int | None:
    """A state, or its name in any case, as the number that is stored; None for None."""
    return None if state is None else int(State.of(state))


def task_of(topic: str, row: Sequence[Any]) -> Task:
    """A task from (sequence, identifier, payload, reference, attempt, redelivered)."""
    return Task(row[0], topic, *row[1:6])


def task_info_of(row: Sequence[Any]) -> TaskInfo:
    """A task with everything about it from a row of the view taskq.task_info."""
    values = list(row[:20])
    values[7] = State(values[7])
    values[8] = None if values[8] is None else State(values[8])
    return TaskInfo(*values)


def owner_of(row: Sequence[Any]) -> Owner:
    """An owner from (name, fence, lease, lease_until, resumed)."""
    return Owner(*row)
