"""Health of a program's queue: how old its errors are, who is stuck, and a signal when errors go on."""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from airflow_provider_taskq.queue import PartitionState, StuckOwner, TaskQueue, TopicErrors
from airflow_provider_taskq.worker.connection import Connect, connects_to
from airflow_provider_taskq.worker.periodic import Routine

log = logging.getLogger(__name__)

ERROR_AGE = timedelta(minutes=15)
GRACE = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class HealthReport:
    """What a look found: errors by topic, owners and readers that are stuck, and what is wrong in sentences."""

    errors: list[TopicErrors]
    stuck: list[StuckOwner]
    readers: list[PartitionState]
    wrong: list[str]

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong."""
        return not self.wrong


def look(queue: TaskQueue, error_age: timedelta = ERROR_AGE, patience: timedelta = timedelta(0)) -> HealthReport:
    """Looks at errors, owners and readers, and says what is wrong.

    That is a task with an error that was pushed `error_age` ago or earlier, an owner that holds tasks under a lease
    that lapsed longer ago than `patience`, and a partition whose reader gave up.
    """
    errors, stuck = queue.topic_errors(), queue.stuck_owners(patience)
    readers = [reader for reader in queue.partition_states() if reader.failed is not None]
    wrong = [
        f"topic {each.topic}: sequence {each.sequence} failed, and was pushed {_whole(each.age)} ago"
        for each in errors
        if each.age >= error_age
    ]
    wrong += [
        f"owner {each.name} holds {each.held} tasks, its lease lapsed {_whole(each.lapsed)} ago" for each in stuck
    ]
    wrong += [f"group {each.group}, topic {each.topic}: partition {each.partition} gave up" for each in readers]
    return HealthReport(errors, stuck, readers, wrong)


def _whole(age: timedelta) -> timedelta:
    """In whole seconds, for people."""
    return age - timedelta(microseconds=age.microseconds)


class HealthSignal:
    """Tells of errors that go on, and of their end.

    After `polls` polls in a row that found errors `on_error` is called with how many, and again where they go on for
    `repeat_after`; after as many in a row that found none `on_recovery` is. What is mixed changes nothing.
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
        self._told = 0.0

    def observe(self, errors: int) -> None:
        """Takes in what a poll found."""
        self._last.append(errors > 0)
        if len(self._last) < (self._last.maxlen or 0):
            return
        if all(self._last):
            now = self._clock()
            if not self.failing or now - self._told > self._repeat_after:
                self.failing, self._told = True, now
                self._on_error(errors)
        elif not any(self._last) and self.failing:
            self.failing = False
            self._on_recovery()


class HealthMonitor(Routine):
    """Looks every so often, and keeps the last report; tells a signal, if there is one.

    In the first ten minutes, `grace`, a program is healthy whatever it finds: it may be what it was started to mend.
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
        self._begun = time.monotonic()
        super().__init__("health", connects_to(dsn), self._poll, self._every)

    @property
    def is_healthy(self) -> bool:
        """Whether the last look found nothing wrong, or the program is young."""
        young = time.monotonic() - self._begun < self._grace
        return young or self.report is None or self.report.is_healthy

    def look(self) -> HealthReport:
        """Looks now."""
        with self._queue_for_once() as queue:
            self.report = look(queue, *self._bounds)
        if self._signal is not None:
            self._signal.observe(sum(each.failed + each.retrying for each in self.report.errors))
        return self.report

    def _poll(self) -> float:
        self.look()
        return self._every
