"""Parsers for parameters of operators, sensors and triggers. Each accepts text, because a rendered template is text."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from enum import Enum
from typing import Any, TypeVar

from airflow_provider_taskq.queue import InvalidArgument
from airflow_provider_taskq.queue.arguments import to_integer, to_timedelta
from airflow_provider_taskq.queue.claims import parse_rendered
from airflow_provider_taskq.queue.owner_names import TaskInstanceName

EnumType = TypeVar("EnumType", bound=Enum)

_MISSING = (None, "", "None")  # a template renders None as text


def logical_task_name(ti: Any) -> str:
    """Return `dag_id/run_id/task_id/map_index`. Without the try number, a retry finds the tasks of its previous try."""
    index = -1 if ti.map_index is None else ti.map_index
    return str(TaskInstanceName(ti.dag_id, ti.run_id, ti.task_id, index))


def parse_int(name: str, value: Any, least: int | None = None) -> int | None:
    """Parse an integer; return None for None, and for empty text or `None` as text.

    Raises InvalidArgument, which names the parameter, for anything else and for an integer below `least`.
    """
    if value in _MISSING:
        return None
    if isinstance(value, str):
        with suppress(ValueError):
            value = int(value)
    return to_integer(value, name, least)


def parse_ints(name: str, value: Sequence[int] | str | None) -> list[int] | None:
    """Parse a list of integers, or its JSON text. Return None for None."""
    listed: Any = json.loads(value) if isinstance(value, str) else value
    return None if listed is None else [to_integer(each, name) for each in listed]


def parse_duration(name: str, value: Any) -> timedelta:
    """Parse a timedelta, seconds, or text such as `90s`, `5m` or `PT5M`. Raises InvalidArgument for anything else."""
    duration: timedelta | None = to_timedelta(value, name)
    if duration is None:
        raise InvalidArgument(f"invalid {name} None: expected a timedelta, a number of seconds, or a text such as 90s")
    return duration


def parse_optional_duration(name: str, value: Any) -> timedelta | None:
    """Parse a duration as `parse_duration`; return None for None, and for empty text or `None` as text."""
    return None if value in _MISSING else parse_duration(name, value)


def enum_name(value: Enum | str | None) -> str | None:
    """Return the name of a member. Operators keep names, because a template can only render text."""
    return value.name if isinstance(value, Enum) else value


def parse_enum(kind: type[EnumType], value: str | None) -> EnumType | None:
    """Return the member with a name. Return None for None, and for empty text or `None` as text."""
    return None if value in _MISSING else kind(value)


def parse_identifiers(value: Any) -> tuple[str, ...]:
    """Parse identifiers and remove duplicates. Text is one identifier, unless it is a list such as `['a', 'b']`."""
    parsed = _parse_list(value)
    return _unique_identifiers([parsed] if isinstance(parsed, str) else parsed)


def parse_groups(value: Any) -> tuple[tuple[str, ...], ...]:
    """Parse groups of identifiers. Each group, or the whole list, may be the text of a list."""
    return tuple(_unique_identifiers(_parse_list(group)) for group in _require_list(_parse_list(value), "groups"))


def _unique_identifiers(value: Any) -> tuple[str, ...]:
    listed = _require_list(value, "identifiers")
    for identifier in listed:
        if not isinstance(identifier, str) or not identifier.strip():
            raise ValueError(f"invalid identifier {_shorten(identifier)}: expected text that is not blank")
    return tuple(dict.fromkeys(listed))


def _require_list(value: Any, kind: str) -> list[Any]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise ValueError(f"invalid {kind} {_shorten(value)}: expected a list")  # noqa: TRY004  one error for all input
    return list(value)


def _parse_list(value: Any) -> Any:
    """Parse the text of a list. Return any other value unchanged."""
    if not isinstance(value, str) or not value.strip().startswith("["):
        return value
    try:
        return parse_rendered(value)
    except ValueError as error:
        raise ValueError(f"invalid list {_shorten(value)}: {error}") from None


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
