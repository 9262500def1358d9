"""Settings of readers: built-in ones, standard ones for all groups of a program, and each group's own."""

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, Literal, TypedDict, cast

from airflow_provider_taskq.processing.session import HANDLER_STATEMENT_TIMEOUT, call_limit
from airflow_provider_taskq.queue import InvalidArgument, RetryPolicy, Task
from airflow_provider_taskq.queue.bounds import LONGEST_STORED
from airflow_provider_taskq.queue.deadline import CallLimit
from airflow_provider_taskq.queue.durations import DurationLike, to_timedelta


class Progress(StrEnum):
    """Where a reader keeps how far it got."""

    DATABASE = "database"
    MEMORY = "memory"


class Leadership(StrEnum):
    """How many programs handle a partition: one at a time, by lease; or each, with progress in its own memory."""

    LEASE = "lease"
    NONE = "none"


class Retry(StrEnum):
    """How the intervals between tries grow."""

    EXPONENTIAL = "exponential"
    FIXED = "fixed"
    NONE = "none"


class Properties(TypedDict, total=False):
    """Any of the settings: what one level of precedence says.

    A duration is a timedelta, a number of seconds, or a text such as `90s`, `5m` or `PT5M`.
    """

    subject: str | None
    recursive: bool
    auto_start: bool
    partitions: int
    level: int | None
    progress: Progress | Literal["database", "memory"]
    transactional: bool
    together: int
    leadership: Leadership | Literal["lease", "none"]
    lease: DurationLike
    lead_at_most: int | None
    size: int
    pause: DurationLike
    retry: Retry | Literal["exponential", "fixed", "none"]
    retry_initial: DurationLike
    retry_multiplier: float
    retry_max_interval: DurationLike
    retry_max_attempts: int | None
    retry_max_elapsed: DurationLike | None
    call_timeout: DurationLike | None
    handler_statement_timeout: DurationLike


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a reader, the built-in ones by default.

    `subject`: only events whose identifier is this or, if `recursive`, below it (after a slash). `partitions`, by
    `level` as `sequence_id` has it. `transactional`: handlers run in the transaction that stores progress, those of
    `together` events in one where none fails. `lease`: how long after its last sign of life a leader is replaced at the
    latest. `lead_at_most`: partitions that one program leads at a time, None for all that it gets. `size`: events read
    at once. `pause`: between two looks at a log that has nothing new. `call_timeout`: how long the reader waits for an
    answer of the database before it opens another connection; a third of the lease by default, 5 seconds at least.
    `handler_statement_timeout`: the same for statements of transactional handlers.
    """

    subject: str | None = None
    recursive: bool = True
    auto_start: bool = True
    partitions: int = 1
    level: int | None = None
    progress: str = Progress.DATABASE
    transactional: bool = False
    together: int = 1
    leadership: str = Leadership.LEASE
    lease: timedelta = timedelta(seconds=10)
    lead_at_most: int | None = None
    size: int = 100
    pause: timedelta = timedelta(milliseconds=500)
    retry: str = Retry.EXPONENTIAL
    retry_initial: timedelta = timedelta(seconds=2)
    retry_multiplier: float = 1.5
    retry_max_interval: timedelta = timedelta(seconds=30)
    retry_max_attempts: int | None = None
    retry_max_elapsed: timedelta | None = None
    call_timeout: timedelta | None = None
    handler_statement_timeout: timedelta = HANDLER_STATEMENT_TIMEOUT

    def __post_init__(self) -> None:
        for name, kind in {"progress": Progress, "leadership": Leadership, "retry": Retry}.items():
            if getattr(self, name) not in set(kind):
                raise InvalidArgument(f"{name} {getattr(self, name)!r} is none of {', '.join(kind)}")
        if min(self.partitions, self.size, self.together) < 1 or (
            self.lead_at_most is not None and self.lead_at_most < 1
        ):
            raise InvalidArgument("partitions, size, together and lead_at_most are 1 or more")
        durations = (self.lease, self.pause, self.call_timeout or self.lease, self.handler_statement_timeout)
        if min(durations) <= timedelta(0):
            raise InvalidArgument("lease, pause, call_timeout and handler_statement_timeout are longer than nothing")
        if self.lease > LONGEST_STORED:
            raise InvalidArgument(f"lease is at most {LONGEST_STORED.days} days, not {self.lease}")
        if self.progress == Progress.MEMORY and self.transactional:
            raise InvalidArgument("progress in memory is in no transaction")
        if self.together > 1 and not self.transactional:
            raise InvalidArgument("events are handled together in a transaction: that takes transactional=True")
        if self.progress == Progress.DATABASE and self.leadership == Leadership.NONE:
            raise InvalidArgument("progress in the database is one for all programs: one of them leads, by lease")

    @property
    def policy(self) -> RetryPolicy:
        """How long to wait before an event is tried again; its `max_attempts` counts the first try too."""
        if self.retry == Retry.NONE:
            return RetryPolicy()
        fixed = self.retry == Retry.FIXED
        return RetryPolicy.event_handling(
            initial=self.retry_initial,
            multiplier=1.0 if fixed else self.retry_multiplier,
            max_interval=self.retry_initial if fixed else self.retry_max_interval,
            max_attempts=self.retry_max_attempts,
            max_elapsed=None if fixed else self.retry_max_elapsed,
        )

    def call_limit(self) -> CallLimit:
        """A limit for the calls of one partition."""
        return call_limit(self.lease, self.call_timeout, self.handler_statement_timeout)

    def concerns(self, event: Task) -> bool:
        """Whether an event is of the subject at all."""
        if self.subject is None or event.identifier == self.subject:
            return True
        return self.recursive and event.identifier.startswith(self.subject.rstrip("/") + "/")


_DURATIONS = (
    *("lease", "pause", "retry_initial", "retry_max_interval", "retry_max_elapsed"),
    *("call_timeout", "handler_statement_timeout"),
)


def merged(*levels: Properties) -> Settings:
    """The settings that these levels make: of each property what the first says that says something."""
    said: dict[str, Any] = {}
    for level in reversed(levels):
        said.update(cast(dict[str, Any], level))
    said.update({name: to_timedelta(said[name]) for name in _DURATIONS if name in said})
    try:
        return replace(Settings(), **said)
    except TypeError:
        unknown = sorted(set(said) - set(Settings.__dataclass_fields__))
        raise InvalidArgument(f"readers have no setting {', '.join(unknown)}") from None
