"""The watchdog of a worker: reports slow handlers with their stack, and enforces their time limit."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_taskq.worker.config import WorkerConfig
from airflow_provider_taskq.worker.lease import InFlightBatch
from airflow_provider_taskq.worker.listener import ListenerDispatcher
from airflow_provider_taskq.worker.services import PeriodicService

log = logging.getLogger(__name__)

_LONGEST_INTERVAL = 1.0  # seconds between two checks


class HandlerStuck(Exception):
    """A handler took longer than its limit. Its tasks are FAILED, and its later decisions are ignored."""


@dataclass(slots=True)
class _Watched:
    batch: InFlightBatch
    began: float
    report_at: float
    timed_out: bool = False


class Watchdog(PeriodicService):
    """Watches the batches that handlers work on, and calls `check` at least once a second. Makes no network call."""

    def __init__(
        self,
        config: WorkerConfig,
        listeners: ListenerDispatcher,
        on_timeout: Callable[[InFlightBatch], None],
        check: Callable[[], None],
    ) -> None:
        self._listeners = listeners
        self._slow_after = config.slow_reports.after.total_seconds()
        self._report_every = config.slow_reports.every.total_seconds()
        self._limit = config.limit.total_seconds() if config.limit else None
        self._on_timeout = on_timeout
        self._check = check
        self._watched: dict[int, _Watched] = {}
        self._lock = threading.Lock()
        super().__init__("taskq watchdog", connect=None)

    def add(self, batch: InFlightBatch) -> None:
        """Start to watch a batch. Call this method before the handler."""
        now = time.monotonic()
        with self._lock:
            self._watched[id(batch)] = _Watched(batch, now, now + self._slow_after)

    def remove(self, batch: InFlightBatch) -> float:
        """End the watch of a batch. Return the seconds since `add`."""
        with self._lock:
            watched = self._watched.pop(id(batch))
        return time.monotonic() - watched.began

    def _run_once(self) -> float:
        self._check_handlers()
        self._check()
        durations = (self._slow_after, self._report_every, self._limit)
        return min(_LONGEST_INTERVAL, *(each / 4 for each in durations if each))

    def _check_handlers(self) -> None:
        now = time.monotonic()
        with self._lock:
            watched = list(self._watched.values())
        for each in watched:
            if now >= each.report_at:
                each.report_at = now + self._report_every
                batch, seconds = each.batch, now - each.began
                stack = "\n".join(f"{activity.name}:\n{activity.stack()}" for activity in batch.batch.activities())
                log.warning("handler is slow: %s seconds=%.1f stack:\n%s", batch.describe(), seconds, stack)
                self._listeners.on_stuck(batch.trace, seconds, stack)
            if self._limit is not None and now - each.began >= self._limit and not each.timed_out:
                each.timed_out = True
                self._on_timeout(each.batch)
