"""The rules for the durations and the integers that users pass in: verbs, options and operators read them here.

A duration is a timedelta, a number of seconds, or a text such as `90s`. It is not negative. An integer is an int, or an
integer of numpy; a bool and a number with a fraction are not.
"""

from datetime import timedelta
from numbers import Real
from operator import index
from threading import TIMEOUT_MAX
from typing import Any, Generic, SupportsIndex, TypeVar, overload

from airflow_provider_taskq.queue.durations import parse_duration
from airflow_provider_taskq.queue.errors import InvalidArgument

DurationLike = timedelta | float | str  # what to_timedelta() reads
_REAL: type[Any] = Real  # numbers of numpy are registered there
_ZERO = timedelta(0)


@overload
def to_timedelta(value: DurationLike, name: str = "duration", least: timedelta = _ZERO) -> timedelta: ...
@overload
def to_timedelta(value: DurationLike | None, name: str = "duration", least: timedelta = _ZERO) -> timedelta | None: ...
def to_timedelta(value: DurationLike | None, name: str = "duration", least: timedelta = _ZERO) -> timedelta | None:
    """Convert a timedelta, a number of seconds, or a text as `parse_duration` reads it. Return None for None.

    :param name: what the error calls the value.
    :param least: the shortest duration that is accepted; timedelta.min accepts negative ones.
    :raises InvalidArgument: for another value, a shorter duration, and a number of seconds that no timedelta holds.
    """
    if value is None:
        return None
    if isinstance(value, timedelta):
        duration = value
    elif isinstance(value, str):
        duration = parse_duration(value)
    elif isinstance(value, bool) or not isinstance(value, _REAL):
        raise InvalidArgument(
            f"invalid {name} {value!r:.50} (a {type(value).__name__}): expected a timedelta, a number of seconds, or a"
            " text such as 90s"
        )
    else:
        try:
            duration = timedelta(seconds=float(value))
        except (OverflowError, ValueError):
            raise InvalidArgument(f"invalid {name} {value!r:.50}: no such number of seconds can be stored") from None
    if duration < least:
        wanted = "more than 0 s" if least == timedelta.resolution else f"at least {least.total_seconds():g} s"
        raise InvalidArgument(f"invalid {name} {duration.total_seconds():g} s: expected {wanted}")
    return duration


def to_seconds(value: DurationLike | None, name: str = "timeout") -> float | None:
    """Convert a duration as `to_timedelta`, to seconds, at most those that a thread can wait. Return None for None."""
    duration = to_timedelta(value, name)
    return None if duration is None else min(duration.total_seconds(), TIMEOUT_MAX)


def to_integer(value: SupportsIndex, name: str = "number", least: int | None = None) -> int:
    """Convert an int, or an integer of another library such as numpy.

    :param name: what the error calls the value.
    :raises InvalidArgument: for a bool, another type, a number with a fraction, and an integer below `least`.
    """
    try:
        number = value if type(value) is int else index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise InvalidArgument(f"invalid {name} {value!r:.50} (a {type(value).__name__}): expected an integer")
    if least is not None and number < least:
        raise InvalidArgument(f"invalid {name} {number}: expected at least {least}")
    return number


T = TypeVar("T", timedelta, timedelta | None)


class Duration(Generic[T]):
    """An option of a dataclass that is set like `to_timedelta`, and read as a timedelta.

    For example `pause: Duration[timedelta] = Duration("1s")`, or with None as another value
    `limit: Duration[timedelta | None] = Duration(None)`.

    Raises InvalidArgument for a duration shorter than `least`, which is more than 0 unless given, and for None unless
    None is the default.
    """

    def __init__(self, default: DurationLike | T, least: timedelta = timedelta.resolution) -> None:
        self._default: timedelta | None = to_timedelta(default)
        self._least = least

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> T:
        found: Any = self._default if instance is None else instance.__dict__[self._name]
        return found  # type: ignore[no-any-return]  # T

    def __set__(self, instance: object, value: DurationLike | T) -> None:
        if value is None and self._default is not None:
            raise InvalidArgument(f"invalid {self._name} None: expected a duration")
        instance.__dict__[self._name] = to_timedelta(value, self._name, self._least)
