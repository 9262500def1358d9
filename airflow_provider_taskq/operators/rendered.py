"""What operators make of rendered templates, which are texts: numbers, spans, choices. And the database's clock."""

import json
from collections.abc import Sequence
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_taskq.parameters import Span, count, number, optional_span, span

if TYPE_CHECKING:
    import psycopg

__all__ = ["Span", "choice", "count", "name", "now", "number", "numbers", "optional_span", "span"]

Choice = TypeVar("Choice", bound=Enum)


def numbers(value: Sequence[int] | str | None) -> list[int] | None:
    """Whole numbers: a list, or a template's text of one."""
    given: Any = json.loads(value) if isinstance(value, str) else value
    return None if given is None else [int(each) for each in given]


def name(value: Enum | str | None) -> str | None:
    """How a choice is kept in an operator's field: as its name, which is what a template can give."""
    return value.name if isinstance(value, Enum) else value


def choice(kind: type[Choice], value: str | None) -> Choice | None:
    """One of a few, by its name."""
    return None if value in (None, "", "None") else kind(value)


def now(connection: "psycopg.Connection[Any]") -> datetime:
    """The time on the database's clock, the only one that the queue goes by."""
    row = connection.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None  # noqa: S101  for the type checker
    moment: datetime = row[0]
    return moment
