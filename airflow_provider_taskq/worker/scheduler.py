"""The scheduler installs the next ticks of several schedules. Several programs may run it at once."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from datetime import time as time_of_day
from typing import Any

from airflow_provider_taskq.queue import InvalidArgument, Json, NewTask, TaskQueue
from airflow_provider_taskq.queue.arguments import DurationLike, to_integer, to_timedelta
from airflow_provider_taskq.queue.schedules import Schedule
from airflow_provider_taskq.worker.connection import Connect, DatabaseSession, Disconnected, connection_factory
from airflow_provider_taskq.worker.services import PeriodicService

log = logging.getLogger(__name__)

Ticks = Iterable[tuple[datetime, NewTask | Json]]
MakeTicks = Callable[[datetime], Ticks]
Payload = NewTask | Json | Callable[[datetime], NewTask | Json]

_RECONNECT_SECONDS = 1.0

SECOND, HOUR, DAY = timedelta(seconds=1), timedelta(hours=1), timedelta(days=1)


@dataclass(slots=True)
class TickSchedule:
    """A schedule of a topic, under a prefix and a hash. `make` returns the next ticks after a moment."""

    topic: str
    prefix: str
    hash: str
    interval: timedelta
    make: MakeTicks
    due: float = 0.0  # by time.monotonic()

    def install(self, queue: TaskQueue) -> int:
        """Add the missing ticks, and return their number.

        The call fails if it takes longer than the interval.
        """
        now = queue.now()
        ticks = list(self.make(now))
        with queue.conn.transaction():
            milliseconds = max(1000, self.interval // timedelta(milliseconds=1))
            queue.conn.execute(f"SET LOCAL statement_timeout = {milliseconds}".encode())
            return queue.install_ticks(self.topic, self.prefix, self.hash, ticks)


class Scheduler(PeriodicService):
    """Installs the next ticks of each schedule at its start, and then periodically.

        with Scheduler(dsn) as scheduler:
            scheduler.every("reports", "hourly", timedelta(hours=1))

    Any number of programs may install the same ticks: each moment becomes one task. Installed ticks stay when the
    program ends. After a change of a schedule or its payload, the first installation replaces the ticks that wait.
    TaskQTicksOperator and `taskq ticks install` with the same schedule and payload make the same ticks.

    :param dsn: see `Worker`.
    """

    def __init__(self, dsn: str | Connect | None = None) -> None:
        self.schedules: list[TickSchedule] = []
        super().__init__("scheduler", connection_factory(dsn))

    def add(self, topic: str, prefix: str, hash_: str, interval: DurationLike, make: MakeTicks) -> None:
        """Add a schedule whose ticks `make(now)` returns. `interval` is the time between installations.

        Raises InvalidArgument if the prefix is blank or the interval is not longer than 0.
        """
        if not prefix.strip():
            raise InvalidArgument("the prefix of ticks must not be blank")
        length = to_timedelta(interval, "interval", timedelta.resolution)
        self.schedules.append(TickSchedule(topic, prefix, hash_, length, make))

    def every(
        self,
        topic: str,
        prefix: str,
        period: DurationLike,
        payload: Payload = None,
        ahead: int = 1,
        *,
        version: Json = None,
    ) -> None:
        """Add ticks at each multiple of a period since the epoch. Install them every quarter of the period.

        :param payload: JSON, a NewTask, or a function of the tick's moment that returns one of them.
        :param ahead: number of ticks that are installed ahead.
        :param version: change it with the code of a payload function, because the scheduler does not see such a change.
        """
        length, count = to_timedelta(period, "period", timedelta.resolution), to_integer(ahead, "ahead", 1)
        interval = max(length / 4, SECOND)
        self._add(topic, prefix, Schedule.every(length), payload, version, length * count, interval)

    def daily(
        self,
        topic: str,
        prefix: str,
        hours: Sequence[time_of_day],
        zone: str,
        payload: Payload = None,
        *,
        ahead: DurationLike = DAY,
        interval: DurationLike | None = None,
        version: Json = None,
    ) -> None:
        """Add ticks at times of day in a time zone. For `payload` and `version` see `every`.

        :param ahead: installs the ticks within this time, and at least the next one.
        :param interval: time between installations; by default a quarter of `ahead`, at most an hour.
        """
        self._add(topic, prefix, Schedule.daily(hours, zone), payload, version, ahead, interval)

    def cron(
        self,
        topic: str,
        prefix: str,
        expression: str,
        zone: str,
        payload: Payload = None,
        *,
        ahead: DurationLike = DAY,
        interval: DurationLike | None = None,
        version: Json = None,
    ) -> None:
        """Add ticks at the times of a cron expression in a time zone.

        Each installation checks the expression and the zone: `install()` raises InvalidArgument, and a running
        scheduler logs a warning and tries again after `interval`. For the other parameters see `daily` and `every`.

        :param expression: five fields (minute, hour, day of month, month, day of week), or @hourly, @daily, @weekly,
            @monthly or @yearly.
        :param zone: the name of a time zone, for example `Europe/Berlin`.
        """
        self._add(topic, prefix, Schedule.cron(expression, zone), payload, version, ahead, interval)

    def _add(
        self,
        topic: str,
        prefix: str,
        schedule: Schedule,
        payload: Payload,
        version: Json,
        ahead: DurationLike,
        interval: DurationLike | None,
    ) -> None:
        span = to_timedelta(ahead, "ahead")

        def make(now: datetime) -> Ticks:
            times = schedule.times(now, span)
            return [(moment, payload(moment) if callable(payload) else payload) for moment in times]

        if interval is None:
            interval = min(max(span / 4, SECOND), HOUR)
        self.add(topic, prefix, schedule.hash(_hashed(payload, version)), interval, make)

    def start(self) -> None:
        """Start the thread, which installs all schedules at once. Raises TaskQueueError if it runs already."""
        for schedule in self.schedules:
            schedule.due = 0.0
        super().start()

    def install(self) -> int:
        """Install the next ticks of every schedule now, and return the number of new ticks."""
        with closing(DatabaseSession(self._connect)) as session, session.queue() as queue:
            return sum(schedule.install(queue) for schedule in self.schedules)

    def _run_once(self) -> float:
        for schedule in list(self.schedules):
            if self._stopped.is_set() or schedule.due > time.monotonic():
                continue
            try:
                with self._session.queue() as queue:
                    schedule.install(queue)
            except Disconnected as error:
                log.warning("ticks not installed, will retry: topic=%s error=%s", schedule.topic, error)
                return _RECONNECT_SECONDS
            except Exception as error:  # must not stop the other schedules
                named = (schedule.topic, schedule.prefix, type(error).__name__)
                log.warning("ticks not installed: topic=%s prefix=%s error=%s", *named, exc_info=error)
            schedule.due = time.monotonic() + schedule.interval.total_seconds()
        next_ = min((each.due for each in list(self.schedules)), default=time.monotonic() + 1)
        return max(0.0, min(next_ - time.monotonic(), 1.0))


def _hashed(payload: Payload, version: Json) -> Json:
    """Return the part of a schedule's hash that stands for its payload: the payload, or the version of a function."""
    if callable(payload):
        return version
    if isinstance(payload, NewTask):
        payload = {each.name: _as_json(getattr(payload, each.name)) for each in fields(payload)}
    return payload if version is None else [payload, version]


def _as_json(value: Any) -> Json:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return [list(pair) for pair in value] if isinstance(value, tuple) else value  # a tuple: the pairs of depends_on
