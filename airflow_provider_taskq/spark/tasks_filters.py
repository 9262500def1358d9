"""Filters of a DataFrame that the database applies: on state, identifier, sequence and created."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_taskq.queue import State

_MICROSECOND = timedelta(microseconds=1)


@dataclass(slots=True)
class Narrowing:
    """What is asked of tasks: bounds with both ends included, and sets; None asks for nothing.

    A filter is taken on only where it is applied exactly, so that Spark has nothing left to do for it.
    """

    low: int | None = None
    high: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    states: frozenset[int] | None = None
    identifiers: frozenset[str] | None = None

    @property
    def impossible(self) -> bool:
        """Whether no task can be all of this."""
        return self.states == frozenset() or self.identifiers == frozenset()

    def arguments(self) -> tuple[Any, ...]:
        """The arguments of taskq.task_bounds from p_low to p_until."""
        states = None if self.states is None else sorted(self.states)
        identifiers = None if self.identifiers is None else sorted(self.identifiers)
        return self.low, self.high, states, identifiers, self.since, self.until

    def takes(self, asked: Any) -> bool:
        """Whether this filter of Spark's is taken on."""
        kind, column = type(asked).__name__, ".".join(getattr(asked, "attribute", ()))
        if kind == "IsNotNull":
            return column in ("state", "identifier", "sequence", "created")
        if kind in ("EqualTo", "EqualNullSafe", "In") and column in ("state", "identifier"):
            return self._takes_set(column, asked.value if kind == "In" else (asked.value,))
        if kind in ("EqualTo", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual"):
            return self._takes_bound(column, kind, asked.value)
        return False

    def _takes_set(self, column: str, values: Sequence[Any]) -> bool:
        """One of some names."""
        if not all(isinstance(value, str) and "\x00" not in value for value in values):
            return False
        if column == "state":
            found = frozenset(int(State[name]) for name in values if name in State.__members__)
            self.states = found if self.states is None else self.states & found
        else:
            names = frozenset(values)
            self.identifiers = names if self.identifiers is None else self.identifiers & names
        return True

    def _takes_bound(self, column: str, kind: str, value: Any) -> bool:
        """A bound on a sequence or a time."""
        if column == "sequence" and isinstance(value, int):
            low, high = _bounds(kind, value, 1)
            self.low, self.high = _later(self.low, low), _earlier(self.high, high)
            return True
        if column == "created" and isinstance(value, datetime) and value.tzinfo is not None:
            since, until = _bounds(kind, value, _MICROSECOND)
            self.since, self.until = _later(self.since, since), _earlier(self.until, until)
            return True
        return False


def _bounds(kind: str, value: Any, step: Any) -> tuple[Any, Any]:
    """The least and the greatest value that a comparison lets through, None where it has no such bound."""
    return {
        "EqualTo": (value, value),
        "GreaterThan": (value + step, None),
        "GreaterThanOrEqual": (value, None),
        "LessThan": (None, value - step),
        "LessThanOrEqual": (None, value),
    }[kind]


def _later(one: Any, other: Any) -> Any:
    return one if other is None else other if one is None else max(one, other)


def _earlier(one: Any, other: Any) -> Any:
    return one if other is None else other if one is None else min(one, other)
