"""The progress of a drain, reported every few seconds to its log and to `on_progress`."""

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
from airflow_provider_taskq.spark.connection import ConnectionInfo

logger = logging.getLogger(__name__)

PAUSE = 5.0  # seconds between two reports
MAX_SHARE = 0.05  # of the time may be spent on counting


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """The tasks claimed and done in all rounds so far. The tasks of a Spark task are done when it has staged them."""

    topic: str
    owner: str
    round: int
    claimed: int
    done: int
    seconds: float


OnProgress = Callable[[DrainProgress], None]


class ProgressReporter:
    """Reports the progress of one round, from a thread with its own connection.

    It counts the decisions in the round's stage, so the number is exact whatever jobs a transform runs. Counting a
    million decisions takes the server 0.1 s; the longer it takes, the longer are the pauses.

    `before`: the progress of the earlier rounds. `claimed`: the number of tasks in this round.
    """

    def __init__(
        self,
        connection_info: ConnectionInfo,
        before: DrainProgress,
        claimed: int,
        stage: str,
        on_progress: OnProgress | None,
    ) -> None:
        self._connection_info = connection_info
        self._before = before
        self._claimed = claimed
        self._stage = stage
        self._on_progress = on_progress
        self._began = time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="taskq progress", daemon=True)

    def __enter__(self) -> Self:
        """Starts the thread."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops the thread; does not wait long for a call that gets no answer."""
        self._stopped.set()
        self._thread.join(timeout=PAUSE)

    def _run(self) -> None:
        pause = PAUSE
        conn: psycopg.Connection[Any] | None = None
        while not self._stopped.wait(pause):
            began = time.monotonic()
            try:
                conn = conn or self._connection_info.connect(autocommit=True)
                self._report(self._count_staged(conn))
            except (psycopg.Error, TaskQueueError):  # the lease keeper reports a server that is away
                with suppress(psycopg.Error):
                    if conn is not None:
                        conn.close()
                conn = None
            pause = max(PAUSE, (time.monotonic() - began) / MAX_SHARE)
        if conn is not None:
            conn.close()

    def _count_staged(self, conn: psycopg.Connection[Any]) -> int:
        """The number of staged decisions, at most that of the claimed tasks: a Spark task may have run twice."""
        row = conn.execute("SELECT taskq.count_staged(%s::uuid)", (self._stage,)).fetchone()
        return min(row[0] if row else 0, self._claimed)

    def _report(self, staged: int) -> None:
        before = self._before
        if not self._stopped.is_set():
            progress = DrainProgress(
                before.topic,
                before.owner,
                before.round + 1,
                before.claimed + self._claimed,
                before.done + staged,
                before.seconds + time.monotonic() - self._began,
            )
            report_progress(progress, self._on_progress)


def report_progress(progress: DrainProgress, on_progress: OnProgress | None) -> None:
    """Logs the progress and calls `on_progress`, whose errors are logged and end nothing."""
    logger.info(
        "drain progress: topic=%s round=%s done=%s claimed=%s seconds=%.0f tasks_per_second=%.0f",
        progress.topic,
        progress.round,
        progress.done,
        progress.claimed,
        progress.seconds,
        progress.done / progress.seconds if progress.seconds else 0,
    )
    if on_progress is not None:
        try:
            on_progress(progress)
        except Exception:
            logger.exception("on_progress failed")
