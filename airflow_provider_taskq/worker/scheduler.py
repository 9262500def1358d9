"""The ticker: keeps the next ticks of several configurations installed, however many programs do so."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from datetime import time as time_of_day
from typing import Any

from airflow_provider_taskq.queue import (
    InvalidArgument,
    Json,
    NewTask,
    TaskQueue,
    config_hash,
    ticks_cron,
    ticks_daily,
    ticks_every,
)
from airflow_provider_taskq.worker.connection import Connect, Disconnected, connects_to
from airflow_provider_taskq.worker.periodic import Routine

log = logging.getLogger(__name__)

Ticks = Iterable[tuple[datetime, NewTask | Json]]
Make = Callable[[datetime], Ticks]
Payload = NewTask | Json | Callable[[datetime], NewTask | Json]

_RECONNECT = 1.0  # seconds until a lost connection is made again

NONE, SECOND, HOUR, DAY = timedelta(0), timedelta(seconds=1), timedelta(hours=1), timedelta(days=1)


@dataclass(slots=True)
class TickSchedule:
    """Ticks of a topic under a prefix and a hash: `make` says which are next, as seen from a moment."""

    topic: str
    prefix: str
    hash: str
    interval: timedelta
    make: Make
    due: float = 0.0  # by time.monotonic

    def install(self, queue: TaskQueue) -> int:
        """Adds what is missing as seen from now, within the interval or not at all; returns how many."""
        [now] = queue.conn.execute("SELECT clock_timestamp()").fetchone() or (datetime.now(UTC),)
        ticks = list(self.make(now))
        with queue.conn.transaction():
            milliseconds = max(1000, self.interval // timedelta(milliseconds=1))
            queue.conn.execute("SELECT set_config('statement_timeout', %s, true)", (str(milliseconds),))
            return queue.install_ticks(self.topic, self.prefix, self.hash, ticks)


class Scheduler(Routine):
    """Installs the next ticks of each configuration at once, and then every so often until it is stopped.

        with Ticker(dsn) as ticker:
            ticker.every("reports", "hourly", timedelta(hours=1))

    Any number of programs may keep the same ticks: one task comes of each moment. What a program has installed stays
    when it ends; a configuration that changed, its payload too, replaces the ticks that wait, at its first
    installation. TaskQTicksOperator and `taskq ticks install` with the same schedule and payload make the same ticks.
    """

    def __init__(self, dsn: str | Connect | None = None) -> None:
        self.configurations: list[TickSchedule] = []
        super().__init__("ticker", connects_to(dsn), self._install_due, 1.0)

    def add(self, topic: str, prefix: str, hash_: str, interval: timedelta, make: Make) -> None:
        """Adds a configuration; InvalidArgument for a blank prefix or an interval of nothing."""
        if not prefix.strip():
            raise InvalidArgument("the prefix of ticks is blank")
        if interval <= NONE:
            raise InvalidArgument(f"ticks are installed every so often, not every {interval}")
        self.configurations.append(TickSchedule(topic, prefix, hash_, interval, make))

    def every(
        self,
        topic: str,
        prefix: str,
        period: timedelta,
        payload: Payload = None,
        ahead: int = 1,
        *,
        version: Json = None,
    ) -> None:
        """A tick at each boundary of a period, counted from the epoch; looked after every quarter of it.

        `payload`: JSON, a NewTask, or a function of the tick's moment that returns one of them. The first installation
        after a change of the payload replaces the ticks that wait. A change of a function is not recognized: give it
        another `version`.
        """
        interval = max(period / 4, SECOND) if period > NONE else period
        hash_ = config_hash("every", period.total_seconds(), _hashed(payload, version))
        self.add(topic, prefix, hash_, interval, lambda now: _paid(ticks_every(period, now, ahead), payload))

    def daily(
        self,
        topic: str,
        prefix: str,
        hours: Sequence[time_of_day],
        zone: str,
        payload: Payload = None,
        *,
        ahead: timedelta = DAY,
        interval: timedelta | None = None,
        version: Json = None,
    ) -> None:
        """Ticks at times of day in a time zone, so long ahead and at least the next one.

        They are looked after every `interval`: by default a quarter of `ahead`, and at most an hour. `payload` and
        `version` as of `every`.
        """
        if not hours:
            raise InvalidArgument("daily ticks need at least one time of day")
        times: list[Json] = [hour.isoformat() for hour in sorted(hours)]
        hash_ = config_hash("daily", times, zone, _hashed(payload, version))
        interval = _quarter(ahead) if interval is None else interval
        self.add(topic, prefix, hash_, interval, lambda now: _paid(ticks_daily(hours, zone, now, ahead), payload))

    def cron(
        self,
        topic: str,
        prefix: str,
        expression: str,
        zone: str,
        payload: Payload = None,
        *,
        ahead: timedelta = DAY,
        interval: timedelta | None = None,
        version: Json = None,
    ) -> None:
        """Ticks of a cron expression in a time zone, so long ahead and at least the next one; see `daily`."""
        hash_ = config_hash("cron", expression, zone, _hashed(payload, version))
        interval = _quarter(ahead) if interval is None else interval
        self.add(topic, prefix, hash_, interval, lambda now: _paid(ticks_cron(expression, zone, now, ahead), payload))

    def start(self) -> None:
        """Installs at once, in a thread of its own, and goes on; TaskQueueError where it runs already."""
        for configuration in self.configurations:
            configuration.due = 0.0
        super().start()

    def install(self) -> int:
        """Installs the next ticks of every configuration now, and returns how many were added."""
        with self._queue_for_once() as queue:
            return sum(configuration.install(queue) for configuration in self.configurations)

    def _install_due(self) -> float:
        """Installs what is due, each for itself, and returns the seconds until something is."""
        for configuration in list(self.configurations):
            if self._periodic.is_stopping or configuration.due > time.monotonic():
                continue
            try:
                with self._session.queue() as queue:
                    configuration.install(queue)
            except Disconnected as error:
                log.warning("ticks not installed: topic=%s; tried again: %s", configuration.topic, error)
                return _RECONNECT
            except Exception as error:  # the others, and the next run, go on
                named = (configuration.prefix, configuration.topic, type(error).__name__)
                log.warning("ticks %s of topic %s were not installed: %s", *named, exc_info=error)
            configuration.due = time.monotonic() + configuration.interval.total_seconds()
        next_ = min((each.due for each in list(self.configurations)), default=time.monotonic() + 1)
        return max(0.0, min(next_ - time.monotonic(), 1.0))


def _paid(moments: Iterable[datetime], payload: Payload) -> Ticks:
    """The ticks of these moments: with the payload, or the one that is made for each."""
    return [(moment, payload(moment) if callable(payload) else payload) for moment in moments]


def _quarter(ahead: timedelta) -> timedelta:
    """How often ticks that are made so long ahead are looked after."""
    return min(max(ahead / 4, SECOND), HOUR)


def _hashed(payload: Payload, version: Json) -> Json:
    """What a payload adds to the hash of its configuration: itself, or only the version of a function."""
    if callable(payload):
        return version
    carried: Json = _task_as_json(payload) if isinstance(payload, NewTask) else payload
    return carried if version is None else [carried, version]


def _task_as_json(task: NewTask) -> dict[str, Json]:
    """The fields of a task as JSON."""
    return {each.name: _as_json(getattr(task, each.name)) for each in fields(task)}


def _as_json(value: Any) -> Json:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return [list(pair) for pair in value] if isinstance(value, tuple) else value  # dependencies
