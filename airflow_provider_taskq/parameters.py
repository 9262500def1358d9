"""Parameters of operators, sensors and triggers that a template may give: numbers and lengths of time, also as text."""

from datetime import timedelta
from typing import Any

from airflow_provider_taskq.queue import InvalidArgument
from airflow_provider_taskq.queue.durations import to_timedelta

Span = timedelta | float | str


def number(value: int | str | None) -> int | None:
    """A whole number; None for none, as for a template that gave `None` or nothing."""
    return None if value in (None, "", "None") else int(value)


def count(name: str, value: Any) -> int | None:
    """The number of a parameter that counts tasks or the like; InvalidArgument for less than 1, or for no number."""
    try:
        counted = number(value)
    except (TypeError, ValueError):
        raise InvalidArgument(f"{name} is a number of at least 1, not {value!r}") from None
    if counted is not None and counted < 1:
        raise InvalidArgument(f"{name} is at least 1, not {counted}")
    return counted


def span(value: Any) -> timedelta:
    """A duration: a timedelta, seconds, or a text such as `90s`, `5m` or `PT5M`; InvalidArgument for anything else."""
    if not isinstance(value, timedelta | int | float | str):
        raise InvalidArgument(f"a duration is a timedelta, seconds or a text such as 5m, not {value!r}")
    return to_timedelta(value)


def optional_span(value: Any) -> timedelta | None:
    """The same; None for none, as for a template that gave `None` or nothing."""
    return None if value in (None, "", "None") else span(value)
