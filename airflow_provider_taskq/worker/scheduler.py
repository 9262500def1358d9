"""The scheduler installs the next ticks of several schedules. Several programs may run it at once."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from datetime import time as time_of_day
from zoneinfo import ZoneInfo

from airflow_provider_taskq.queue import InvalidArgument, Json, NewTask, TaskQueue, config_hash
from airflow_provider_taskq.queue.arguments import DurationLike, to_integer, to_timedelta
from airflow_provider_taskq.queue.recurring import CatchUp, Payload, RecurringTask
from airflow_provider_taskq.queue.schedules import ONE_DAY, Schedule
from airflow_provider_taskq.worker.connection import Connect, DatabaseSession, Disconnected, connection_factory
from airflow_provider_taskq.worker.services import PeriodicService

log = logging.getLogger(__name__)

Ticks = Iterable[tuple[datetime, NewTask | Json]]
MakeTicks = Callable[[datetime], Ticks]

_RECONNECT_SECONDS = 1.0

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)


@dataclass(slots=True)
class TickSchedule:
    """A schedule of a topic under a prefix. `add_missing` adds the missing ticks, and returns their number."""

    topic: str
    prefix: str
    interval: timedelta
    add_missing: Callable[[TaskQueue], int]
    due: float = 0.0  # by time.monotonic()

    def install(self, queue: TaskQueue) -> int:
        """Add the missing ticks. The call fails if it takes longer than the interval."""
        with queue.conn.transaction():
            milliseconds = max(1000, self.interval // timedelta(milliseconds=1))
            queue.conn.execute(f"SET LOCAL statement_timeout = {milliseconds}".encode())
            return self.add_missing(queue)


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
        self._connect = connection_factory(dsn)
        super().__init__("scheduler", self._connect)

    def add(self, topic: str, prefix: str, version: Json, interval: DurationLike, make: MakeTicks) -> None:
        """Add a schedule whose ticks `make(now)` returns. `interval` is the time between installations.

        :param version: change it with the code of `make`: the first installation then replaces the ticks that wait.
        :raises InvalidArgument: if the prefix is blank or the interval is not longer than 0.
        """
        hash_ = config_hash(version)
        self._add(topic, prefix, interval, lambda queue: queue.install_ticks(topic, prefix, hash_, make(queue.now())))

    def every(
        self,
        topic: str,
        prefix: str,
        period: DurationLike,
        payload: Payload = None,
        ahead: int = 1,
        *,
        version: Json = None,
        catch_up: CatchUp = "none",
    ) -> None:
        """Add ticks at each multiple of a period since the epoch. Install them every quarter of the period.

        :param ahead: number of ticks that are installed ahead. For the other parameters see `RecurringTask`.
        """
        length, count = to_timedelta(period, "period", timedelta.resolution), to_integer(ahead, "ahead", 1)
        task = RecurringTask(Schedule.every(length), payload, version, length * count, catch_up)
        self._add_recurring(topic, prefix, task, max(length / 4, SECOND))

    def daily(
        self,
        topic: str,
        prefix: str,
        hours: Sequence[time_of_day],
        zone: str | ZoneInfo,
        payload: Payload = None,
        *,
        ahead: DurationLike = ONE_DAY,
        interval: DurationLike | None = None,
        version: Json = None,
        catch_up: CatchUp = "none",
    ) -> None:
        """Add ticks at times of day in a time zone. For the other parameters see `RecurringTask`.

        :param interval: time between installations; by default a quarter of `ahead`, at most an hour.
        """
        task = RecurringTask(Schedule.daily(hours, zone), payload, version, ahead, catch_up)
        self._add_recurring(topic, prefix, task, interval)

    def cron(
        self,
        topic: str,
        prefix: str,
        expression: str,
        zone: str | ZoneInfo,
        payload: Payload = None,
        *,
        ahead: DurationLike = ONE_DAY,
        interval: DurationLike | None = None,
        version: Json = None,
        catch_up: CatchUp = "none",
    ) -> None:
        """Add ticks at the times of a cron expression in a time zone.

        Each installation checks the expression and the zone: `install()` raises InvalidArgument, and a running
        scheduler logs a warning and tries again after `interval`. For the other parameters see `daily`.

        :param expression: five fields (minute, hour, day of month, month, day of week), or @hourly, @daily, @weekly,
            @monthly or @yearly.
        :param zone: the name of a time zone, for example `Europe/Berlin`.
        """
        task = RecurringTask(Schedule.cron(expression, zone), payload, version, ahead, catch_up)
        self._add_recurring(topic, prefix, task, interval)

    def _add_recurring(self, topic: str, prefix: str, task: RecurringTask, interval: DurationLike | None) -> None:
        if interval is None:
            interval = min(max(to_timedelta(task.ahead, "ahead") / 4, SECOND), HOUR)
        self._add(topic, prefix, interval, lambda queue: task.install(queue, topic, prefix).added)

    def _add(self, topic: str, prefix: str, interval: DurationLike, add_missing: Callable[[TaskQueue], int]) -> None:
        if not prefix.strip():
            raise InvalidArgument("the prefix of ticks must not be blank")
        length = to_timedelta(interval, "interval", timedelta.resolution)
        self.schedules.append(TickSchedule(topic, prefix, length, add_missing))

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
