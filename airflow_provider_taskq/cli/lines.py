"""Tasks as JSON lines: an identifier, or an object with the fields of a new task."""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_taskq.cli.payload import json_value
from airflow_provider_taskq.queue import InvalidTask, NewTask
from airflow_provider_taskq.queue.durations import parse_duration

FIELDS = (
    *("identifier", "payload", "reference", "suspended", "available_at", "delay", "ttl", "priority", "depends_on"),
)
_KINDS: dict[str, type | tuple[type, ...]] = {
    "identifier": str,
    "reference": (str, type(None)),
    "suspended": bool,
    "priority": int,
    "depends_on": list,
}


def tasks_of(lines: Iterable[str]) -> Iterator[NewTask]:
    """The task of each line, blank ones aside; InvalidTask names the line, counted from 1."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield _task(json_value(line))
            except (ValueError, TypeError) as error:
                raise InvalidTask(f"line {number}: {_reason(error)}") from None


def _task(given: object) -> NewTask:
    """The task that a line says."""
    if isinstance(given, str):
        return NewTask(given)
    if not isinstance(given, dict):
        raise TypeError("neither an identifier in quotes nor an object")
    unknown = sorted(given.keys() - set(FIELDS))
    if unknown:
        raise ValueError(f"no task has {', '.join(unknown)}; it has {', '.join(FIELDS)}")
    if "identifier" not in given:
        raise ValueError("the identifier is missing")
    for name, kind in _KINDS.items():
        if name in given and (not isinstance(given[name], kind) or (name == "priority" and given[name] is True)):
            raise ValueError(f"its {name} is of the wrong kind")
    return NewTask(**{**given, **_times(given)})


def _times(given: Mapping[str, Any]) -> dict[str, datetime | timedelta | None]:
    """The fields that JSON has no form for."""
    found: dict[str, datetime | timedelta | None] = {}
    for name in ("delay", "ttl"):
        if given.get(name) is not None:
            found[name] = parse_duration(str(given[name]))
    if given.get("available_at") is not None:
        found["available_at"] = datetime.fromisoformat(given["available_at"])
    return found


def _reason(error: Exception) -> str:
    """What is wrong with a line, without the line: it holds a payload."""
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg}, at character {error.pos + 1}"
    return str(error)
