"""The settings of consumers, and the merge of options from several sources."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from itertools import islice
from typing import Any, Literal, TypeAlias, TypedDict, cast

from airflow_provider_taskq.consumer.progress import CALLABLE_LEVEL, ProgressTracker
from airflow_provider_taskq.queue import InvalidArgument, RetryPolicy, Task
from airflow_provider_taskq.queue.connection import CallLimit
from airflow_provider_taskq.queue.durations import DurationLike, to_timedelta
from airflow_provider_taskq.queue.encoding import MAX_STORED_DURATION
from airflow_provider_taskq.worker.connection import HANDLER_STATEMENT_TIMEOUT, lease_call_limit


class ProgressStore(StrEnum):
    """Where a consumer stores its progress."""

    DATABASE = "database"
    MEMORY = "memory"


class Exclusivity(StrEnum):
    """Which consumers of a group handle a partition.

    LEASE: one consumer at a time, which holds the lease. NONE: every consumer.
    """

    LEASE = "lease"
    NONE = "none"


class Level(StrEnum):
    """The names of levels in OpenCQRS, where `per_second_level_subject` is the default."""

    PER_SUBJECT = "per_subject"
    PER_SECOND_LEVEL_SUBJECT = "per_second_level_subject"
    NO_SEQUENCE = "no_sequence"


SequenceResolver: TypeAlias = Callable[[Task], str]
_LEVELS: dict[str, int | None] = {Level.PER_SUBJECT: None, Level.PER_SECOND_LEVEL_SUBJECT: 2, Level.NO_SEQUENCE: 0}


class Retry(StrEnum):
    """How the delays between attempts grow."""

    EXPONENTIAL = "exponential"
    FIXED = "fixed"
    NONE = "none"


class ConsumerOptions(TypedDict, total=False):
    """Some of the settings of ConsumerConfig. `merge_options` makes a ConsumerConfig of several such dictionaries.

    A duration is a timedelta, a number of seconds, or a text such as `90s`, `5m` or `PT5M`.
    """

    subject: str | None
    recursive: bool
    auto_start: bool
    partitions: int
    level: int | Level | Literal["per_subject", "per_second_level_subject", "no_sequence"] | SequenceResolver | None
    progress: ProgressStore | Literal["database", "memory"] | ProgressTracker
    transactional: bool
    transaction_size: int
    exclusivity: Exclusivity | Literal["lease", "none"]
    lease: DurationLike
    max_partitions: int | None
    only_partitions: int | Collection[int] | None
    size: int
    pause: DurationLike
    retry: (
        Retry | Literal["exponential", "fixed", "none"] | Callable[[int], DurationLike | None] | Iterable[DurationLike]
    )
    retry_initial: DurationLike
    retry_multiplier: float
    retry_max_interval: DurationLike
    retry_max_attempts: int | None
    retry_max_elapsed: DurationLike | None
    call_timeout: DurationLike | None
    handler_statement_timeout: DurationLike


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """All settings of a consumer. Raises InvalidArgument if one is out of range, or if two contradict each other.

    :param subject: handles only events whose identifier is this or, if `recursive`, starts with it and a slash.
    :param auto_start: `Consumers.start` starts the consumer.
    :param partitions: the number of partitions of the group.
    :param level: maps events to partitions as `sequence_id` does: a number, None, a name of `Level`, or a function of
        the event that returns the text to hash.
    :param progress: where the progress is stored: "database", "memory", or a ProgressTracker.
    :param transactional: handlers run in the transaction that stores progress.
    :param transaction_size: events that share one transaction, unless a handler fails.
    :param exclusivity: "lease" gives each partition to one consumer of the group at a time. "none" gives every
        partition to every consumer; it needs progress in memory or in a tracker.
    :param lease: another consumer takes a partition over within this time after the last heartbeat of its holder.
    :param max_partitions: partitions that one consumer holds at a time; None for no limit.
    :param only_partitions: numbers of the partitions that this consumer may hold; None for all.
    :param size: events that one call reads.
    :param pause: time between two reads when the log has no new events.
    :param retry: "exponential", "fixed", "none", a function of the number of failures that returns a duration or None
        (skip the event), or a series of durations.
    :param call_timeout: how long the consumer waits for an answer of the database before it opens another connection;
        by default a third of the lease, at least 5 seconds.
    :param handler_statement_timeout: the same for the statements of transactional handlers.
    """

    subject: str | None = None
    recursive: bool = True
    auto_start: bool = True
    partitions: int = 1
    level: int | str | SequenceResolver | None = None
    progress: str | ProgressTracker = ProgressStore.DATABASE
    transactional: bool = False
    transaction_size: int = 1
    exclusivity: str = Exclusivity.LEASE
    lease: timedelta = timedelta(seconds=10)
    max_partitions: int | None = None
    only_partitions: int | Collection[int] | None = None
    size: int = 100
    pause: timedelta = timedelta(milliseconds=500)
    retry: str | Callable[[int], DurationLike | None] | Iterable[DurationLike] = Retry.EXPONENTIAL
    retry_initial: timedelta = timedelta(seconds=2)
    retry_multiplier: float = 1.5
    retry_max_interval: timedelta = timedelta(seconds=30)
    retry_max_attempts: int | None = None
    retry_max_elapsed: timedelta | None = None
    call_timeout: timedelta | None = None
    handler_statement_timeout: timedelta = HANDLER_STATEMENT_TIMEOUT

    def __post_init__(self) -> None:
        named = {"progress": ProgressStore, "exclusivity": Exclusivity, "retry": Retry, "level": Level}
        for name, kind in named.items():
            value = getattr(self, name)
            if isinstance(value, str) and value not in set(kind):
                raise InvalidArgument(f"{name} {value!r} must be one of {', '.join(kind)}")
        self._check_objects()
        if min(self.partitions, self.size, self.transaction_size) < 1 or (
            self.max_partitions is not None and self.max_partitions < 1
        ):
            raise InvalidArgument("partitions, size, transaction_size and max_partitions must be at least 1")
        durations = (self.lease, self.pause, self.call_timeout or self.lease, self.handler_statement_timeout)
        if min(durations) <= timedelta(0):
            raise InvalidArgument("lease, pause, call_timeout and handler_statement_timeout must be longer than 0")
        if self.lease > MAX_STORED_DURATION:
            raise InvalidArgument(f"lease must be at most {MAX_STORED_DURATION.days} days, not {self.lease}")
        if self.progress != ProgressStore.DATABASE and self.transactional:
            raise InvalidArgument("transactional=True needs progress in the database")
        if self.transaction_size > 1 and not self.transactional:
            raise InvalidArgument("transaction_size greater than 1 needs transactional=True")
        if self.progress == ProgressStore.DATABASE and self.exclusivity == Exclusivity.NONE:
            raise InvalidArgument(
                "exclusivity='none' needs progress in memory or in a tracker: in the database all consumers share it"
            )

    def _check_objects(self) -> None:
        if not isinstance(self.progress, str | ProgressTracker):
            raise InvalidArgument(
                "progress must be database, memory, or an object with the methods current and proceed"
            )
        if isinstance(self.retry, Iterator):
            raise InvalidArgument(
                "retry must not be an iterator, which ends after one event: use a list, or a function of the failures"
            )
        if not (isinstance(self.retry, Iterable) or callable(self.retry)):
            raise InvalidArgument(f"retry must be a name, a function or a series of durations, not {self.retry!r}")
        if not (self.level is None or isinstance(self.level, int | str) or callable(self.level)):
            raise InvalidArgument(f"level must be a number, a name or a function of an event, not {self.level!r}")
        if outside := [number for number in self.chosen or () if not 0 <= number < self.partitions]:
            raise InvalidArgument(
                f"only_partitions {outside} must be numbers of partitions, 0 to {self.partitions - 1}"
            )

    @property
    def chosen(self) -> frozenset[int] | None:
        """The numbers of the partitions that this consumer may hold; None for all."""
        if self.only_partitions is None:
            return None
        return frozenset([self.only_partitions] if isinstance(self.only_partitions, int) else self.only_partitions)

    @property
    def database_level(self) -> int | None:
        """The level that the database uses to map events to partitions."""
        if isinstance(self.level, str):
            return _LEVELS[self.level]
        return self.level if self.level is None or isinstance(self.level, int) else CALLABLE_LEVEL

    @property
    def resolver(self) -> SequenceResolver | None:
        """The function that maps events to partitions; None if the database maps them."""
        return self.level if callable(self.level) else None

    @property
    def retry_delay(self) -> Callable[[int], timedelta | None]:
        """A function that returns, for a number of failures, the delay until the next attempt, or None to skip."""
        retry = self.retry
        if callable(retry):
            return lambda failures: to_timedelta(retry(failures))
        if not isinstance(retry, str):
            return lambda failures: to_timedelta(next(islice(iter(retry), failures - 1, None), None))
        if retry == Retry.NONE:
            return RetryPolicy().delay
        fixed = retry == Retry.FIXED
        return RetryPolicy.event_handling(
            initial=self.retry_initial,
            multiplier=1.0 if fixed else self.retry_multiplier,
            max_interval=self.retry_initial if fixed else self.retry_max_interval,
            max_attempts=self.retry_max_attempts,
            max_elapsed=None if fixed else self.retry_max_elapsed,
        ).delay

    def call_limit(self) -> CallLimit:
        """Return the time limit for the calls of one partition."""
        return lease_call_limit(self.lease, self.call_timeout, self.handler_statement_timeout)

    def concerns(self, event: Task) -> bool:
        """Return whether the subject includes an event."""
        if self.subject is None or event.identifier == self.subject:
            return True
        return self.recursive and event.identifier.startswith(self.subject.rstrip("/") + "/")


_DURATIONS = (
    *("lease", "pause", "retry_initial", "retry_max_interval", "retry_max_elapsed"),
    *("call_timeout", "handler_statement_timeout"),
)


def merge_options(*options: ConsumerOptions) -> ConsumerConfig:
    """Merge options. The value of the first dictionary that has an option wins, then the default.

    Raises InvalidArgument for an unknown option, a value out of range, and options that contradict each other.
    """
    found: dict[str, Any] = {}
    for each in reversed(options):
        found.update(cast(dict[str, Any], each))
    found.update({name: to_timedelta(found[name]) for name in _DURATIONS if name in found})
    try:
        return replace(ConsumerConfig(), **found)
    except TypeError:
        unknown = sorted(set(found) - set(ConsumerConfig.__dataclass_fields__))
        raise InvalidArgument(f"unknown options of a consumer: {', '.join(unknown)}") from None
