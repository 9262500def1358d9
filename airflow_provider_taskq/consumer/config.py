"""The settings of a consumer."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import TypeAlias

from airflow_provider_taskq.consumer.tracker import ProgressTracker
from airflow_provider_taskq.queue import InvalidArgument, RetryPolicy, Task, partition_of
from airflow_provider_taskq.queue.arguments import Duration, DurationLike, to_integer, to_timedelta
from airflow_provider_taskq.queue.connection import CallLimit
from airflow_provider_taskq.queue.encoding import MAX_STORED_DURATION
from airflow_provider_taskq.queue.session import DEFAULT_TIMEOUTS, Timeouts

Resolver: TypeAlias = Callable[[Task], str | int]
RetryDelay: TypeAlias = Callable[[int], DurationLike | None]
_RETRY = RetryPolicy.event_handling()


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig:
    """All settings of a consumer. Raises InvalidArgument if one is out of range, or if two contradict each other.

    Each duration is a timedelta, a number of seconds, or a text such as `90s`, `5m` or `PT5M`.

    :param subject: handles only events whose identifier is this or, if `recursive`, starts with it and a slash.
    :param partitions: the number of partitions of the group.
    :param level: maps events to partitions as `sequence_id` does: a number, None, or a function of the event that
        returns the text to hash, or the number of the partition.
    :param version: the version of the function `level`. Change it with the function: while programs with another
        version hold partitions, the consumer waits.
    :param progress: where the progress is stored: None for the database, a MemoryTracker, or a tracker of yours.
    :param transactional: handlers run in the transaction that stores progress.
    :param transaction_size: events that share one transaction, unless a handler fails.
    :param exclusive: one consumer of the group at a time handles a partition. If False, every consumer handles every
        event; this needs a tracker, because all consumers share the progress in the database.
    :param lease: another consumer takes a partition over within this time after the last heartbeat of its holder.
    :param max_partitions: partitions that one consumer holds at a time; None for no limit.
    :param only_partitions: numbers of the partitions that this consumer may hold; None for all.
    :param size: events that one call reads.
    :param pause: time between two reads when the log has no new events.
    :param retry: the delays after failures of an event: a policy, a series of delays, or a function of the number of
        failures that returns a delay or None. At the end of the policy or the series, after None and after a negative
        delay, the consumer skips the event.
    :param timeouts: how long the consumer waits for answers of the database.
    """

    subject: str | None = None
    recursive: bool = True
    partitions: int = 1
    level: int | Resolver | None = None
    version: str = ""
    progress: ProgressTracker | None = None
    transactional: bool = False
    transaction_size: int = 1
    exclusive: bool = True
    lease: Duration[timedelta] = Duration("10s")
    max_partitions: int | None = None
    only_partitions: Collection[int] | None = None
    size: int = 100
    pause: Duration[timedelta] = Duration("0.5s")
    retry: RetryPolicy | RetryDelay | Collection[DurationLike] = _RETRY
    timeouts: Timeouts = DEFAULT_TIMEOUTS

    def __post_init__(self) -> None:
        for name in ("partitions", "size", "transaction_size", "max_partitions"):
            if (number := getattr(self, name)) is not None or name != "max_partitions":
                to_integer(number, name, 1)
        if self.lease > MAX_STORED_DURATION:
            raise InvalidArgument(f"lease must be at most {MAX_STORED_DURATION.days} days, not {self.lease}")
        last = self.partitions - 1
        if outside := [each for each in self.only_partitions or () if not 0 <= each <= last]:
            raise InvalidArgument(f"only_partitions {outside} must be numbers of partitions, 0 to {last}")
        self._check_kinds()
        contradictions = {
            "recursive=False needs a subject": not self.recursive and self.subject is None,
            "transactional=True needs progress in the database": self.transactional and self.progress is not None,
            "transaction_size greater than 1 needs transactional=True": self.transaction_size > 1
            and not self.transactional,
            "exclusive=False needs progress in a tracker: in the database all consumers share it": not self.exclusive
            and self.progress is None,
        }
        for sentence, applies in contradictions.items():
            if applies:
                raise InvalidArgument(sentence)

    def _check_kinds(self) -> None:
        if not (self.progress is None or isinstance(self.progress, ProgressTracker)):
            raise InvalidArgument("progress must be None or an object with the methods current and proceed")
        if not (self.level is None or callable(self.level)):
            to_integer(self.level, "level", 0)
        if isinstance(self.retry, Collection) and not isinstance(self.retry, str):
            for delay in self.retry:
                to_timedelta(delay, "retry", timedelta.min)
        elif not (callable(self.retry) or isinstance(self.retry, RetryPolicy)):
            raise InvalidArgument(f"retry must be a RetryPolicy, a function or a list of delays, not {self.retry!r}")
        if isinstance(self.retry, RetryPolicy) and (self.retry.horizon or self.retry.jitter or self.retry.probe):
            raise InvalidArgument("retry must have no horizon, jitter or probe: they are for topics")

    @property
    def division(self) -> tuple[int, int | None, str | None]:
        """The number of partitions, and the level or the version of the function that maps events to them."""
        return (self.partitions, None, self.version) if callable(self.level) else (self.partitions, self.level, None)

    def partition(self, event: Task) -> int | None:
        """Return the partition of an event by the function `level`, or None if the database maps the events.

        Raises InvalidArgument if the function returns neither a text nor the number of a partition.
        """
        if not callable(self.level):
            return None
        key = self.level(event)
        if isinstance(key, str):
            return partition_of(key, self.partitions)
        if type(key) is int and 0 <= key < self.partitions:
            return key
        last = self.partitions - 1
        raise InvalidArgument(f"level must return a text, or the number of a partition, 0 to {last}, not {key!r:.100}")

    @property
    def stored_lease(self) -> timedelta:
        """The length of a lease in the database: four fifths of the configured length.

        Because other consumers try to acquire every tenth of it, one of them takes over within the configured length.
        """
        return self.lease * 0.8

    @property
    def renewal_seconds(self) -> float:
        """The seconds between two attempts to renew and acquire leases: a tenth of the lease, at most 1."""
        return min(self.lease.total_seconds() / 10, 1.0)

    def retry_delay(self, failures: int) -> timedelta | None:
        """Return the delay after a number of failures of an event until the next attempt, or None to skip the event."""
        if isinstance(self.retry, RetryPolicy):
            return self.retry.delay(failures)
        given = self.retry(failures) if callable(self.retry) else next(islice(self.retry, failures - 1, None), None)
        delay = to_timedelta(given, "retry", timedelta.min)
        return None if delay is None or delay < timedelta(0) else delay

    def call_limit(self) -> CallLimit:
        """Return the time limit for the calls of one partition."""
        return self.timeouts.call_limit(self.lease)

    def concerns(self, event: Task) -> bool:
        """Return whether the subject includes an event."""
        if self.subject is None or event.identifier == self.subject:
            return True
        return self.recursive and event.identifier.startswith(self.subject.rstrip("/") + "/")


BUILT_IN = ConsumerConfig()
