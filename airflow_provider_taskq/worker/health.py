"""Health of a queue: old errors, stuck owners, failed partitions, and a signal for errors that last."""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from airflow_provider_taskq.queue import PartitionState, StuckOwner, TaskQueue, TopicErrors
from airflow_provider_taskq.worker.connection import Connect, connection_factory
from airflow_provider_taskq.worker.periodic import PeriodicService

log = logging.getLogger(__name__)

ERROR_AGE = timedelta(minutes=15)
GRACE = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class HealthReport:
    """The findings of one check: errors by topic, stuck owners, failed partitions, and a sentence for each problem."""

    errors: list[TopicErrors]
    stuck: list[StuckOwner]
    partitions: list[PartitionState]
    wrong: list[str]

    @property
    def is_healthy(self) -> bool:
        """Whether the check found nothing wrong."""
        return not self.wrong


def check_health(
    queue: TaskQueue, error_age: timedelta = ERROR_AGE, patience: timedelta = timedelta(0)
) -> HealthReport:
    """Checks the tasks, owners and consumers of a queue.

    :param error_age: reports tasks with an error that were pushed at least this long ago.
    :param patience: reports owners that hold tasks under a lease that lapsed longer ago than this.
    """
    errors, stuck = queue.topic_errors(), queue.stuck_owners(patience)
    failed = [state for state in queue.partition_states() if state.failed is not None]
    wrong = [
        f"topic {each.topic}: sequence {each.sequence} failed, and was pushed {_whole(each.age)} ago"
        for each in errors
        if each.age >= error_age
    ]
    wrong += [
        f"owner {each.name} holds {each.held} tasks, its lease lapsed {_whole(each.lapsed)} ago" for each in stuck
    ]
    wrong += [f"group {each.group}, topic {each.topic}: an error ended partition {each.partition}" for each in failed]
    return HealthReport(errors, stuck, failed, wrong)


def _whole(age: timedelta) -> timedelta:
    return age - timedelta(microseconds=age.microseconds)


class HealthSignal:
    """Reports errors that last, and their end.

    After `polls` checks in a row with errors, calls `on_error` with their number, and again every `repeat_after` while
    they last. After `polls` checks in a row without errors, calls `on_recovery`. Mixed checks change nothing.
    """

    def __init__(
        self,
        on_error: Callable[[int], None],
        on_recovery: Callable[[], None],
        *,
        polls: int = 3,
        repeat_after: timedelta = timedelta(hours=1),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.failing = False
        self._on_error = on_error
        self._on_recovery = on_recovery
        self._last: deque[bool] = deque(maxlen=polls)
        self._repeat_after = repeat_after.total_seconds()
        self._clock = clock
        self._reported_at = 0.0

    def observe(self, errors: int) -> None:
        """Evaluates the number of errors that a check found."""
        self._last.append(errors > 0)
        if len(self._last) < (self._last.maxlen or 0):
            return
        if all(self._last):
            now = self._clock()
            if not self.failing or now - self._reported_at > self._repeat_after:
                self.failing, self._reported_at = True, now
                self._on_error(errors)
        elif not any(self._last) and self.failing:
            self.failing = False
            self._on_recovery()


class HealthMonitor(PeriodicService):
    """Checks periodically, keeps the last report, and passes the number of errors to a signal if there is one.

    :param dsn: see `Worker`.
    :param every: time between two checks.
    :param error_age: see `check_health`.
    :param patience: see `check_health`.
    :param grace: time after its creation in which `is_healthy` is True: the program may repair the queue.
    """

    def __init__(
        self,
        dsn: str | Connect | None = None,
        *,
        signal: HealthSignal | None = None,
        every: timedelta = timedelta(minutes=1),
        error_age: timedelta = ERROR_AGE,
        patience: timedelta = timedelta(0),
        grace: timedelta = GRACE,
    ) -> None:
        self.report: HealthReport | None = None
        self._signal = signal
        self._every = every.total_seconds()
        self._bounds = (error_age, patience)
        self._grace = grace.total_seconds()
        self._started_at = time.monotonic()
        super().__init__("health", connection_factory(dsn), self._every)

    @property
    def is_healthy(self) -> bool:
        """Whether the last check found nothing wrong. Also True before the first check and within `grace`."""
        young = time.monotonic() - self._started_at < self._grace
        return young or self.report is None or self.report.is_healthy

    def check(self) -> HealthReport:
        """Checks now, and returns the report."""
        with self._queue_for_once() as queue:
            self.report = check_health(queue, *self._bounds)
        if self._signal is not None:
            self._signal.observe(sum(each.failed + each.retrying for each in self.report.errors))
        return self.report

    def _run_once(self) -> float:
        self.check()
        return self._every
