"""Policies: how a topic retries, and what becomes of tasks whose owner vanished."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Self, TypedDict

from airflow_provider_taskq.queue.durations import DurationLike, to_timedelta
from airflow_provider_taskq.queue.errors import InvalidArgument

UNLIMITED = 2**31 - 1


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How a failed task is tried again. One attempt is the default: the first failure is final.

    After n noted failures the next try is due after min(base * factor ** (n - 1), max_delay), and no later
    than `horizon` after the task was created. It is given up after `max_attempts` failures, or once the delays
    so far add up to `max_elapsed`. `jitter`, 0..1, takes up to that share off each delay. `probe`: while
    retries of the topic fail, one is tried at a time, in turn: the next when any of them becomes due, after `base` at
    the latest. No duration of a policy is longer than 3650 days.
    """

    max_attempts: int = 1
    base: timedelta = timedelta(minutes=1)
    factor: float = 2.0
    max_delay: timedelta = timedelta(minutes=180)
    horizon: timedelta | None = None
    max_elapsed: timedelta | None = None
    jitter: float = 0.0
    probe: bool = False

    @classmethod
    def correlation(
        cls, *, base: float = 2.0, max_backoff: timedelta = timedelta(minutes=180), max_retries: int = 100
    ) -> Self:
        """Minutes by powers of `base`, never due later than `max_backoff` after the task's creation.

        `max_retries` counts noted failures in all. It reproduces the worked example in the guide of
        camunda-bpm-correlate, "Scheduled Processing", to the second.
        """
        return cls(max_attempts=max_retries, factor=base, max_delay=max_backoff, horizon=max_backoff)

    @classmethod
    def event_handling(
        cls,
        *,
        initial: timedelta = timedelta(seconds=2),
        multiplier: float = 1.5,
        max_interval: timedelta = timedelta(seconds=30),
        max_attempts: int | None = None,
        max_elapsed: timedelta | None = None,
    ) -> Self:
        """Intervals that grow from `initial` by `multiplier` to `max_interval`.

        `max_attempts` counts the retries after the first run, None for no end. The defaults are those of
        OpenCQRS's event handling.
        """
        attempts = UNLIMITED if max_attempts is None else max_attempts + 1
        return cls(attempts, initial, multiplier, max_interval, max_elapsed=max_elapsed)

    def delay(self, attempts: int) -> timedelta | None:
        """The delay after so many noted failures (1 or more), jitter and horizon aside; None to give up."""
        if attempts < 1:
            raise ValueError(f"a delay follows a failure: attempts is {attempts}, less than 1")
        if attempts >= self.max_attempts:
            return None
        if self.max_elapsed is not None and self._elapsed_before(attempts, self.max_elapsed) >= self.max_elapsed:
            return None
        return self._back_off(attempts)

    def _back_off(self, attempts: int) -> timedelta:
        """min(base * factor ** (attempts - 1), max_delay), compared by logarithms so that no power overflows."""
        if not self.base:
            return timedelta(0)
        growth = (attempts - 1) * math.log(self.factor)
        if not self.max_delay or growth > math.log(self.max_delay / self.base):
            return self.max_delay
        return min(self.base * self.factor ** (attempts - 1), self.max_delay)

    def _elapsed_before(self, attempts: int, bound: timedelta) -> timedelta:
        """The delays of the failures before this one added up, no further than `bound`."""
        elapsed = timedelta(0)
        for earlier in range(1, attempts):
            elapsed += self._back_off(earlier)
            if elapsed >= bound:
                break
        return elapsed


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """How a topic treats its tasks. One attempt is the default: the first failure of a task is final.

    `retry=RetryPolicy(max_attempts=5)` allows five attempts. `on_expiry`: tasks of a lapsed owner are handed out again
    ("redeliver") or wait as EXPIRED ("expire"); the `max_crashes`-th crash of a task makes it FAILED.
    `max_payload_bytes` counts compact JSON in UTF-8. `ttl` is for tasks that set none.

    `notify`: a push, an offer, a revival or a junction's release sends a notification when its transaction commits, as
    `TaskQueue.notify` does, so that workers and waits that listen look at once. PostgreSQL commits one transaction with
    notifications at a time in the whole server, and cannot prepare such a transaction for a two-phase commit.
    docs/performance.md has the cost.
    """

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    on_expiry: str = "redeliver"
    max_crashes: int = 3
    max_payload_bytes: int = 262_144
    ttl: timedelta | None = None
    notify: bool = False


class PolicyChanges(TypedDict, total=False):
    """Fields of a policy to change: those of TopicPolicy and of its RetryPolicy; durations also as `90s` or seconds.

    `retry` stands for all fields of the RetryPolicy; a field that is given as well counts more.
    """

    retry: RetryPolicy
    max_attempts: int
    base: DurationLike
    factor: float
    max_delay: DurationLike
    horizon: DurationLike | None
    max_elapsed: DurationLike | None
    jitter: float
    probe: bool
    on_expiry: str
    max_crashes: int
    max_payload_bytes: int
    ttl: DurationLike | None
    notify: bool


_RETRY_FIELDS = tuple(each.name for each in fields(RetryPolicy))
_TOPIC_FIELDS = tuple(each.name for each in fields(TopicPolicy) if each.name != "retry")
_DURATIONS = {"base", "max_delay", "horizon", "max_elapsed", "ttl"}
_OPTIONAL = {"horizon", "max_elapsed", "ttl"}
_TYPES: Mapping[str, tuple[type[Any], str]] = {
    "max_attempts": (int, "an integer"),
    "factor": (int | float, "a number"),  # type: ignore[dict-item]  # isinstance() takes it
    "jitter": (int | float, "a number"),  # type: ignore[dict-item]
    "probe": (bool, "True or False"),
    "on_expiry": (str, "a text"),
    "max_crashes": (int, "an integer"),
    "max_payload_bytes": (int, "an integer"),
    "notify": (bool, "True or False"),
}


def policy_fields(policy: TopicPolicy) -> dict[str, Any]:
    """All fields of a policy by name, those of its RetryPolicy first."""
    return {
        **{name: getattr(policy.retry, name) for name in _RETRY_FIELDS},
        **{name: getattr(policy, name) for name in _TOPIC_FIELDS},
    }


def parse_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that changes name, `retry` replaced by its fields; InvalidArgument for an unknown or a wrong field."""
    named = dict(changes)
    retry = named.pop("retry", None)
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise InvalidArgument(f"retry is a {type(retry).__name__}, not a RetryPolicy")
    if unknown := sorted(named.keys() - {*_RETRY_FIELDS, *_TOPIC_FIELDS}):
        known = ", ".join(("retry", *_RETRY_FIELDS, *_TOPIC_FIELDS))
        raise InvalidArgument(f"unknown field {', '.join(map(repr, unknown))} of a policy: expected one of {known}")
    of_retry = {} if retry is None else {name: getattr(retry, name) for name in _RETRY_FIELDS}
    return {**of_retry, **{name: _field(name, value) for name, value in named.items()}}


def apply_changes(policy: TopicPolicy, changes: Mapping[str, Any]) -> TopicPolicy:
    """The policy with the fields that changes name."""
    values = {**policy_fields(policy), **parse_changes(changes)}
    return TopicPolicy(
        RetryPolicy(**{name: values[name] for name in _RETRY_FIELDS}), **{name: values[name] for name in _TOPIC_FIELDS}
    )


def _field(name: str, value: Any) -> Any:
    """The value of a field, a duration as a timedelta; InvalidArgument for a value of another type."""
    if value is None and name in _OPTIONAL:
        return None
    if name in _DURATIONS and isinstance(value, timedelta | int | float | str) and not isinstance(value, bool):
        return to_timedelta(value)
    kind, expected = _TYPES.get(name, (timedelta, "a duration"))
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InvalidArgument(f"{name} is a {type(value).__name__}, not {expected}")
    return value
