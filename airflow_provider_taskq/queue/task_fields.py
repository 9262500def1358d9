"""Converts what a caller gives as a task to a NewTask: an identifier, a dict of the fields, or a NewTask."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from airflow_provider_taskq.queue.durations import to_timedelta
from airflow_provider_taskq.queue.errors import InvalidTask
from airflow_provider_taskq.queue.models import NewTask

TaskInput: TypeAlias = NewTask | str | Mapping[str, Any]

FIELDS = tuple(field.name for field in fields(NewTask))
_TYPES: dict[str, tuple[type[Any], ...]] = {
    "identifier": (str,),
    "reference": (str,),
    "suspended": (bool,),
    "available_at": (datetime,),
    "delay": (timedelta,),
    "ttl": (timedelta,),
    "priority": (int,),
    "depends_on": (list, tuple),
}
_EXPECTED = {
    "suspended": "true or false",
    "available_at": "a datetime or a text in ISO 8601",
    "delay": "a timedelta, a number of seconds or a text such as 90s",
    "ttl": "a timedelta, a number of seconds or a text such as 90s",
    "priority": "an integer",
    "depends_on": "a list of pairs of a topic and an identifier",
}


def new_tasks(topic: str, tasks: Iterable[TaskInput]) -> Iterator[NewTask]:
    """Yields the tasks of a push; InvalidTask names the position of one that is not a task, counted from 0."""
    if isinstance(tasks, str | bytes | Mapping | NewTask):
        raise InvalidTask(f"topic {topic!r}: tasks is one {type(tasks).__name__}: give a list of tasks")
    for position, given in enumerate(tasks):
        if isinstance(given, NewTask):
            yield given
            continue
        try:
            yield new_task(given)
        except (TypeError, ValueError) as error:
            raise InvalidTask(f"topic {topic!r}, task at position {position}: {error}") from None


def new_task(given: object) -> NewTask:
    """Converts one task. A dict has the fields of NewTask; a field that is None or missing has its default.

    `available_at` may be a text in ISO 8601, `delay` and `ttl` a number of seconds or a text such as 90s, 5m, PT5M.
    TypeError or ValueError with the reason, never the payload.
    """
    if isinstance(given, NewTask):
        return given
    if isinstance(given, str):
        return NewTask(given)
    if not isinstance(given, Mapping):
        raise TypeError(f"a task is an identifier, a dict or a NewTask, not a {type(given).__name__}")
    if unknown := [str(name) for name in given if name not in FIELDS]:
        raise ValueError(f"unknown field {', '.join(map(repr, unknown))}: a task has {', '.join(FIELDS)}")
    if given.get("identifier") is None:
        raise ValueError("its identifier is missing")
    return NewTask(**{name: _field(name, value) for name, value in given.items() if value is not None})


def _field(name: str, value: Any) -> Any:
    """The value of a field, of the type that NewTask has; ValueError for a value of another type."""
    converted = _converted(name, value)
    expected = _TYPES.get(name)
    if expected and (not isinstance(converted, expected) or (name == "priority" and isinstance(converted, bool))):
        raise ValueError(f"its {name} is a {type(value).__name__}, not {_EXPECTED.get(name, 'a text')}")
    return converted


def _converted(name: str, value: Any) -> Any:
    """The value with texts and numbers converted to moments and durations."""
    if name == "available_at" and isinstance(value, str):
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(f"its available_at {value[:50]!r} is not a moment in ISO 8601") from None
    if name in ("delay", "ttl") and isinstance(value, int | float | str) and not isinstance(value, bool):
        return to_timedelta(value)
    return value
