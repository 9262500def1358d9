"""A watch over handlers: reports those that take long while they run, with their stack; ends them at their limit."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_taskq.worker.lease import Run
from airflow_provider_taskq.worker.listener import Telling

log = logging.getLogger(__name__)

_LONGEST_TICK = 1.0


class HandlerStuck(Exception):
    """A handler took longer than it may. Its tasks are FAILED, and whatever it decides later changes nothing."""


@dataclass(slots=True)
class _Watched:
    """A batch, since when it is handled, and when it is to be reported next."""

    run: Run
    began: float
    report: float
    ended: bool = False


class Watch:
    """Looks after all batches that are handled now. Calls `on_limit` once for each that takes too long.

    `slow_after`: seconds until the first report; `every`: until the next ones; `limit`: until the end, None for never.
    """

    def __init__(
        self, telling: Telling, slow_after: float, every: float, limit: float | None, on_limit: Callable[[Run], None]
    ) -> None:
        self._telling = telling
        self._slow_after = slow_after
        self._every = every
        self._limit = limit
        self._on_limit = on_limit
        self._watched: dict[int, _Watched] = {}
        self._lock = threading.Lock()

    @property
    def tick(self) -> float:
        """Seconds between two looks."""
        return min(_LONGEST_TICK, *(each / 4 for each in (self._slow_after, self._every, self._limit) if each))

    def enter(self, run: Run) -> None:
        """A handler begins."""
        run.began = now = time.monotonic()
        with self._lock:
            self._watched[id(run)] = _Watched(run, now, now + self._slow_after)

    def leave(self, run: Run) -> float:
        """A handler has ended; returns how many seconds it took."""
        with self._lock:
            watched = self._watched.pop(id(run))
        return time.monotonic() - watched.began

    def is_handled(self, run: Run) -> bool:
        """Whether its handler is at it still."""
        with self._lock:
            return id(run) in self._watched

    def look(self) -> None:
        """Reports what is due, and ends what is over its limit."""
        now = time.monotonic()
        with self._lock:
            watched = list(self._watched.values())
        for each in watched:
            if now >= each.report:
                each.report = now + self._every
                self._report(each.run, now - each.began)
            if self._limit is not None and now - each.began >= self._limit and not each.ended:
                each.ended = True
                self._on_limit(each.run)

    def _report(self, run: Run, seconds: float) -> None:
        """Says which batch it is, and where its handler stands."""
        places = [f"{place.what}:\n{place.stack()}" for place in run.batch.whereabouts()]
        stack = "\n".join(places)
        log.warning("%s has been handled for %.1f seconds; it stands at\n%s", batch_in_words(run), seconds, stack)
        self._telling.on_stuck(run.trace, seconds, stack)


def batch_in_words(run: Run) -> str:
    """A batch by its tasks, for logs and errors."""
    tasks = run.batch.tasks
    shown = ", ".join(str(task.sequence) for task in tasks[:5]) + (", ..." if len(tasks) > 5 else "")
    return f"A batch of {len(tasks)} of topic {tasks[0].topic!r} (sequence {shown})"
