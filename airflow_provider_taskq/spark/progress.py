"""How far a drain is, told every few seconds to whoever watches its log."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import psycopg

from airflow_provider_taskq.queue import TaskQueueError
from airflow_provider_taskq.spark.connection import Route

logger = logging.getLogger(__name__)

PAUSE = 5.0  # seconds between two looks
SHARE = 0.05  # of the time at most is spent on looking


@dataclass(frozen=True, slots=True)
class Progress:
    """Tasks claimed and done in all rounds so far; `done` counts a Spark task's tasks once that has staged them."""

    topic: str
    owner: str
    round: int
    claimed: int
    done: int
    seconds: float


OnProgress = Callable[[Progress], None]


class Watch:
    """Looks at the stage that Spark works on, from a thread and through a connection of its own.

    The decisions that were staged are counted: exact to the Spark task, whatever jobs a transform runs. A look costs
    the server 0.1 s for a million, and is taken less often the longer it took.
    """

    def __init__(
        self, route: Route, before: Progress, claimed: int, stage: str, on_progress: OnProgress | None
    ) -> None:
        self._route = route
        self._before = before
        self._claimed = claimed
        self._stage = stage
        self._on_progress = on_progress
        self._began = time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="taskq progress", daemon=True)

    def __enter__(self) -> Self:
        """Start."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop; a look that is stuck is left behind."""
        self._stopped.set()
        self._thread.join(timeout=PAUSE)

    def _look_on(self) -> None:
        """Looks until stopped. A server that is away is no reason to stop: the lease's keeper tells of that."""
        pause = PAUSE
        conn: psycopg.Connection[Any] | None = None
        while not self._stopped.wait(pause):
            began = time.monotonic()
            try:
                conn = conn or self._route.connect(autocommit=True)
                self._tell(self._staged(conn))
            except (psycopg.Error, TaskQueueError):
                with suppress(psycopg.Error):
                    if conn is not None:
                        conn.close()
                conn = None
            pause = max(PAUSE, (time.monotonic() - began) / SHARE)
        if conn is not None:
            conn.close()

    def _staged(self, conn: psycopg.Connection[Any]) -> int:
        """How many decisions of this round are staged; a task that ran twice is not counted beyond the claim."""
        row = conn.execute("SELECT taskq.count_staged(%s::uuid)", (self._stage,)).fetchone()
        return min(row[0] if row else 0, self._claimed)

    def _tell(self, staged: int) -> None:
        """One line, and the hook."""
        before = self._before
        if self._stopped.is_set():
            return
        seconds = before.seconds + time.monotonic() - self._began
        told(
            Progress(
                before.topic,
                before.owner,
                before.round + 1,
                before.claimed + self._claimed,
                before.done + staged,
                seconds,
            ),
            self._on_progress,
        )


def told(progress: Progress, on_progress: OnProgress | None) -> None:
    """Logs how far it is, and calls the hook; an error of the hook is logged, and ends nothing."""
    logger.info(
        "topic %s, round %s: %s of %s tasks done after %.0f s, %s a second",
        progress.topic,
        progress.round,
        f"{progress.done:,}",
        f"{progress.claimed:,}",
        progress.seconds,
        f"{progress.done / progress.seconds if progress.seconds else 0:,.0f}",
    )
    if on_progress is not None:
        try:
            on_progress(progress)
        except Exception:
            logger.exception("on_progress failed")
