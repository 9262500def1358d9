"""Policies of topics: retries, expired leases, payload limits."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from numbers import Real
from typing import Any, Self, TypedDict

from airflow_provider_taskq.queue.arguments import Duration, DurationLike, to_integer
from airflow_provider_taskq.queue.errors import InvalidArgument

UNLIMITED = 2**31 - 1
_ZERO = timedelta(0)


@dataclass(frozen=True)
class RetryPolicy:
    """How failed tasks are retried. One attempt is the default: the first failure is final.

    After n counted failures the next attempt is due after min(base * factor ** (n - 1), max_delay).

    :param max_attempts: the task is FAILED after this many failures.
    :param base: the delay after the first failure. No duration of a policy is longer than 3650 days.
    :param factor: by which each delay grows.
    :param max_delay: the longest delay.
    :param horizon: no retry is due later than this after the task was created.
    :param max_elapsed: the task is FAILED once its delays add up to this.
    :param jitter: the share of each delay, 0 to 1, that chance may take off.
    :param probe: while retries of the topic fail, one is tried at a time, in turn. The next one goes out when any retry
        is due, after `base` at the latest.
    """

    max_attempts: int = 1
    base: Duration[timedelta] = Duration("1m", _ZERO)
    factor: float = 2.0
    max_delay: Duration[timedelta] = Duration("180m", _ZERO)
    horizon: Duration[timedelta | None] = Duration(None, _ZERO)
    max_elapsed: Duration[timedelta | None] = Duration(None, _ZERO)
    jitter: float = 0.0
    probe: bool = False

    def __post_init__(self) -> None:
        _check_types(self)

    @classmethod
    def correlation(cls, *, base: float = 2.0, max_backoff: DurationLike = "180m", max_retries: int = 100) -> Self:
        """Return a policy with delays of `base ** n` minutes, at most until `max_backoff` after the task's creation.

        The policy reproduces the worked example in the guide of camunda-bpm-correlate, "Scheduled Processing", to the
        second.

        :param max_retries: the number of failures in all.
        """
        return cls(max_attempts=max_retries, factor=base, max_delay=max_backoff, horizon=max_backoff)

    @classmethod
    def event_handling(
        cls,
        *,
        initial: DurationLike = "2s",
        multiplier: float = 1.5,
        max_interval: DurationLike = "30s",
        max_attempts: int | None = None,
        max_elapsed: DurationLike | None = None,
    ) -> Self:
        """Return a policy with delays that grow from `initial` by `multiplier` to `max_interval`.

        The defaults are those of OpenCQRS's event handling.

        :param max_attempts: the number of retries after the first run; None for no limit.
        """
        attempts = UNLIMITED if max_attempts is None else to_integer(max_attempts, "max_attempts", 0) + 1
        return cls(attempts, initial, multiplier, max_interval, max_elapsed=max_elapsed)

    def delay(self, attempts: int) -> timedelta | None:
        """Return the delay after `attempts` counted failures, before jitter and horizon; None to give up.

        :raises InvalidArgument: for less than one failure, and for a policy that no topic may have.
        """
        to_integer(attempts, "attempts", 1)
        if not 0 < self.factor < math.inf:
            raise InvalidArgument(f"invalid factor {self.factor} of a retry policy: expected a number above 0")
        if attempts >= self.max_attempts:
            return None
        if self.max_elapsed is not None:
            elapsed, number = _ZERO, 1  # the database keeps this sum in the row of the task
            while elapsed < self.max_elapsed and number < attempts:
                elapsed, number = elapsed + self._growing_delay(number), number + 1
            if elapsed >= self.max_elapsed:
                return None
        return self._growing_delay(attempts)

    def _growing_delay(self, attempts: int) -> timedelta:
        # min(base * factor ** (attempts - 1), max_delay). Logarithms, because the power may overflow.
        if not self.base:
            return timedelta(0)
        growth = (attempts - 1) * math.log(self.factor)
        if not self.max_delay or growth > math.log(self.max_delay / self.base):
            return self.max_delay
        return min(self.base * self.factor ** (attempts - 1), self.max_delay)


@dataclass(frozen=True)
class TopicPolicy:
    """How a topic treats its tasks. One attempt is the default: the first failure is final.

    :param retry: how failed tasks are retried.
    :param on_expiry: tasks of an expired owner are READY again ("redeliver") or wait as EXPIRED ("expire").
    :param max_crashes: a task is FAILED at this many crashes of its owners, if the last one held it alone.
    :param max_payload_bytes: the limit of a payload, as compact JSON in UTF-8.
    :param ttl: the time to live of tasks that set none.
    :param notify: a push, an offer, a revival or a junction's release notifies listening workers and waits at its
        commit, as `TaskQueue.notify` does. PostgreSQL commits one transaction with notifications at a time in the whole
        server, and cannot prepare one for a two-phase commit. docs/why/evidence/performance.md has the cost.
    :param keep_succeeded: how long the topic keeps SUCCEEDED and FILTERED tasks after their end. Then
        `TaskQueue.maintain` removes them. With None the topic keeps them forever. SUSPENDED and EXPIRED tasks are
        never removed.
    :param keep_failed: the same for FAILED tasks. For a RECREATED or REDUNDANT task, `keep_failed` applies if the task
        was FAILED or EXPIRED before, and `keep_succeeded` otherwise.
    """

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    on_expiry: str = "redeliver"
    max_crashes: int = 3
    max_payload_bytes: int = 262_144
    ttl: Duration[timedelta | None] = Duration(None, _ZERO)
    notify: bool = False
    keep_succeeded: Duration[timedelta | None] = Duration(None, _ZERO)
    keep_failed: Duration[timedelta | None] = Duration(None, _ZERO)

    def __post_init__(self) -> None:
        _check_types(self)


class PolicyChanges(TypedDict, total=False):
    """Fields of a policy to change, by name. Durations may be a text such as `90s` or a number of seconds.

    `retry` sets all fields of the RetryPolicy; a field that is also given overrides it.
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
    keep_succeeded: DurationLike | None
    keep_failed: DurationLike | None


_RETRY_FIELDS = tuple(each.name for each in fields(RetryPolicy))
_TOPIC_FIELDS = tuple(each.name for each in fields(TopicPolicy) if each.name != "retry")
_TYPES: Mapping[str, tuple[type[Any], str]] = {
    "retry": (RetryPolicy, "a RetryPolicy"),
    "factor": (Real, "a number"),
    "jitter": (Real, "a number"),
    "probe": (bool, "True or False"),
    "on_expiry": (str, "a text"),
    "notify": (bool, "True or False"),
}
_INTEGERS = ("max_attempts", "max_crashes", "max_payload_bytes")


def policy_fields(policy: TopicPolicy) -> dict[str, Any]:
    """Return all fields of a policy by name, those of its RetryPolicy first."""
    return {
        **{name: getattr(policy.retry, name) for name in _RETRY_FIELDS},
        **{name: getattr(policy, name) for name in _TOPIC_FIELDS},
    }


def parse_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changed fields by name, with `retry` replaced by its fields.

    :raises InvalidArgument: for an unknown field or a value of another type.
    """
    named = dict(changes)
    retry = named.pop("retry", None)
    if unknown := sorted(named.keys() - {*_RETRY_FIELDS, *_TOPIC_FIELDS}):
        known = ", ".join(("retry", *_RETRY_FIELDS, *_TOPIC_FIELDS))
        raise InvalidArgument(f"unknown field {', '.join(map(repr, unknown))} of a policy: expected one of {known}")
    of_retry = {name: value for name, value in named.items() if name in _RETRY_FIELDS}
    given = TopicPolicy(RetryPolicy(**of_retry), **{name: named[name] for name in named.keys() - of_retry.keys()})
    whole = {} if retry is None else policy_fields(TopicPolicy(retry))
    values = policy_fields(given)
    return {**{name: whole[name] for name in _RETRY_FIELDS if whole}, **{name: values[name] for name in named}}


def apply_changes(policy: TopicPolicy, changes: Mapping[str, Any]) -> TopicPolicy:
    """Return the policy with the changed fields.

    :raises InvalidArgument: for an unknown field or a value of another type.
    """
    values = {**policy_fields(policy), **parse_changes(changes)}
    return TopicPolicy(
        RetryPolicy(**{name: values[name] for name in _RETRY_FIELDS}), **{name: values[name] for name in _TOPIC_FIELDS}
    )


def _check_types(policy: RetryPolicy | TopicPolicy) -> None:
    # Durations check themselves.
    for name in (each.name for each in fields(policy)):
        value = getattr(policy, name)
        if name in _INTEGERS:
            object.__setattr__(policy, name, to_integer(value, name))
        kind, expected = _TYPES.get(name, (object, ""))
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is Real):
            raise InvalidArgument(f"{name} is a {type(value).__name__}, not {expected}")
