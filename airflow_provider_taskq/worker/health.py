"""Health of a program: old errors, lapsed leases, partitions that an error ended; a signal for lasting errors."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta

import psycopg

from airflow_provider_taskq.queue import HealthFinding, Severity, TaskQueueError, TopicErrors
from airflow_provider_taskq.queue.arguments import Duration, DurationLike, to_integer, to_timedelta
from airflow_provider_taskq.queue.errors import first_line
from airflow_provider_taskq.worker.connection import Connect, DatabaseSession, Disconnected, connection_factory
from airflow_provider_taskq.worker.services import PeriodicService

log = logging.getLogger(__name__)

ERROR_AGE = timedelta(minutes=15)
GRACE = timedelta(minutes=10)
# A restart of the program can help against these findings of `queue.health()`. The others concern the server or a
# backlog.
SUBJECTS = ("lapsed leases", "ended partitions")


@dataclass
class HealthSignal:
    """Reports when errors begin to last, and when they end.

    After `polls` checks in a row with errors, the signal calls `on_error` with their number, and again every
    `repeat_after` while they last. After `polls` checks in a row without errors, it calls `on_recovery`. Mixed checks
    change nothing.
    """

    on_error: Callable[[int], None]
    on_recovery: Callable[[], None]
    _: KW_ONLY
    polls: int = 3
    repeat_after: Duration[timedelta] = Duration("1h")
    clock: Callable[[], float] = time.monotonic
    failing: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        to_integer(self.polls, "polls", 1)
        self._last: deque[bool] = deque(maxlen=self.polls)
        self._reported_at = 0.0
        self._lock = threading.RLock()  # a call of `on_error` may check again

    def observe(self, errors: int) -> None:
        """Evaluate the number of errors that a check found, 1 if the check failed."""
        with self._lock:
            self._last.append(errors > 0)
            if self._last.count(errors > 0) < self.polls:
                return
            if errors:
                now = self.clock()
                if not self.failing or now - self._reported_at > self.repeat_after.total_seconds():
                    self.failing, self._reported_at = True, now
                    self.on_error(errors)
            elif self.failing:
                self.failing = False
                self.on_recovery()


class HealthMonitor(PeriodicService):
    """Checks the queue periodically, and passes the number of errors to a signal if there is one.

    `findings` has the problems of the last check: old errors, what `queue.health()` reports about lapsed leases and
    partitions that an error has ended, or that the database cannot be reached or has refused the check.

    :param dsn: see `Worker`.
    :param every: time between two checks.
    :param error_age: reports tasks with an error that were pushed at least this long ago.
    :param patience: reports owners that hold tasks under a lease that lapsed longer ago than this.
    :param grace: time after its creation in which `is_healthy` is True: the program may repair the queue.
    """

    def __init__(
        self,
        dsn: str | Connect | None = None,
        *,
        signal: HealthSignal | None = None,
        every: DurationLike = "1m",
        error_age: DurationLike = ERROR_AGE,
        patience: DurationLike = 0,
        grace: DurationLike = GRACE,
    ) -> None:
        self.findings: list[HealthFinding] | None = None
        self._signal = signal
        self._every = to_timedelta(every, "every", timedelta.resolution).total_seconds()
        self._error_age = to_timedelta(error_age, "error_age")
        self._patience = to_timedelta(patience, "patience")
        self._grace = to_timedelta(grace, "grace").total_seconds()
        self._started_at = time.monotonic()
        super().__init__("health", connection_factory(dsn))

    @property
    def is_healthy(self) -> bool:
        """Whether the last check found no problem; True also before the first check and within `grace`."""
        return time.monotonic() - self._started_at < self._grace or not self.findings

    def check(self) -> list[HealthFinding]:
        """Check now, over a connection of its own, and return the problems. A check that fails is one of them."""
        with closing(DatabaseSession(self._connect)) as session:
            return self._check(session)

    def _check(self, session: DatabaseSession) -> list[HealthFinding]:
        try:
            with session.queue() as queue:
                errors, findings = queue.topic_errors(), queue.health(self._patience)
        except (TaskQueueError, psycopg.Error) as error:
            log.warning("health check failed, will retry: error=%s: %s", type(error).__name__, first_line(error))
            happened = "cannot be reached" if isinstance(error, Disconnected) else "refused the check"
            detail = f"the database {happened}: {first_line(error)}"
            count, found = 1, [HealthFinding(Severity.CRITICAL, "database", detail, None, None)]
        else:
            count = sum(each.failed + each.retrying for each in errors)
            problems = [each for each in findings if each.subject in SUBJECTS and each.severity >= Severity.WARNING]
            found = [_old_error(each) for each in errors if each.age >= self._error_age] + problems
        self.findings = found
        if self._signal is not None:
            self._signal.observe(count)
        return found

    def _run_once(self) -> float:
        self._check(self._session)
        return self._every


def _old_error(oldest: TopicErrors) -> HealthFinding:
    age = timedelta(seconds=int(oldest.age.total_seconds()))
    detail = f"task {oldest.sequence} of topic {oldest.topic!r} failed, and was pushed {age} ago"
    return HealthFinding(
        Severity.WARNING, "old errors", detail, int(age.total_seconds()), None, oldest.topic, oldest.sequence
    )
