"""The scheduler installs the next ticks of several recurring tasks. Several programs may run it at once."""

import logging
import time
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta

from airflow_provider_taskq.queue import InvalidArgument, RecurringTask, TaskQueue
from airflow_provider_taskq.queue.arguments import DurationLike, to_timedelta
from airflow_provider_taskq.queue.session import Connect, DatabaseSession, Disconnected, connection_factory
from airflow_provider_taskq.worker.services import PeriodicService

log = logging.getLogger(__name__)

_RECONNECT_SECONDS = 1.0

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)


@dataclass(slots=True)
class TickSchedule:
    """A recurring task of a topic under a prefix, whose missing ticks are installed once every interval."""

    topic: str
    prefix: str
    task: RecurringTask
    interval: timedelta
    due: float = 0.0  # by time.monotonic()

    def install(self, queue: TaskQueue) -> int:
        """Add the missing ticks, and return their number. The call fails if it takes longer than the interval."""
        with queue.conn.transaction():
            milliseconds = max(1000, self.interval // timedelta(milliseconds=1))
            queue.conn.execute(f"SET LOCAL statement_timeout = {milliseconds}".encode())
            return self.task.install(queue, self.topic, self.prefix).added


class Scheduler(PeriodicService):
    """Installs the next ticks of each recurring task at its start, and then periodically.

        scheduler = Scheduler(dsn)
        scheduler.add("reports", "hourly", RecurringTask(Schedule.every("1h")))
        with scheduler: ...

    Any number of programs may install the same ticks: each moment becomes one task. Installed ticks stay when the
    program ends. After a change of a schedule or its payload, the first installation replaces the ticks that wait.
    TaskQTicksOperator and `taskq ticks install` with the same schedule and payload make the same ticks.

    :param dsn: see `Worker`.
    """

    def __init__(self, dsn: str | Connect | None = None) -> None:
        self.schedules: list[TickSchedule] = []
        self._connect = connection_factory(dsn)
        super().__init__("scheduler", self._connect)

    def add(self, topic: str, prefix: str, task: RecurringTask, interval: DurationLike | None = None) -> None:
        """Add a recurring task.

        An installation that fails is logged, and tried again after the interval: for example, each one checks the
        expression and the zone of `Schedule.cron`.

        :param interval: time between installations; by default a quarter of the task's `ahead`, at least a second and
            at most an hour.
        :raises InvalidArgument: if the prefix is blank, or a duration is not longer than 0.
        """
        if not prefix.strip():
            raise InvalidArgument("the prefix of ticks must not be blank")
        if interval is None:
            interval = min(max(to_timedelta(task.ahead, "ahead") / 4, SECOND), HOUR)
        length = to_timedelta(interval, "interval", timedelta.resolution)
        self.schedules.append(TickSchedule(topic, prefix, task, length))

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
