"""The progress of a drain, reported every few seconds to its log and to `on_progress`."""

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from airflow_provider_taskq.queue.jobs import JobQueue
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.worker.services import PeriodicService

logger = logging.getLogger(__name__)

PAUSE = 5.0  # seconds between two reports
MAX_SHARE = 0.05  # the share of the time that counting may take


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """The progress of a drain in all of its rounds so far.

    `claimed` counts the tasks of these rounds. `done` counts those whose decisions are staged or committed. `round` is
    the number of the current round, from 1. `seconds` is the time since the drain began.
    """

    topic: str
    owner: str
    round: int
    claimed: int
    done: int
    seconds: float


OnProgress = Callable[[DrainProgress], None]


class ProgressReporter(PeriodicService):
    """Reports the progress of one round, from a thread with its own connection.

    It counts the decisions in the round's stage, so the number is exact for any transform. Counting a million decisions
    takes the server 0.1 s; the longer it takes, the longer are the pauses.

    :param before: the progress of the earlier rounds.
    :param claimed: the number of tasks in this round.
    :param stage: the ID of the round's stage.
    """

    def __init__(
        self,
        connection_info: ConnectionInfo,
        before: DrainProgress,
        claimed: int,
        stage: str,
        on_progress: OnProgress | None,
    ) -> None:
        super().__init__("taskq progress", lambda: connection_info.connect(autocommit=True))
        self._before = before
        self._claimed = claimed
        self._stage = stage
        self._on_progress = on_progress
        self._began = time.monotonic()

    def _run(self) -> None:
        if not self._stopped.wait(PAUSE):  # a short round needs no connection
            super()._run()

    def _run_once(self) -> float:
        began = time.monotonic()
        with self._session.queue() as queue:
            staged = JobQueue(queue.conn).count_staged(self._stage)
        before = self._before
        progress = replace(
            before,
            round=before.round + 1,
            claimed=before.claimed + self._claimed,
            # If Spark ran a task twice, the stage may have more decisions than the round has tasks.
            done=before.done + min(staged, self._claimed),
            seconds=before.seconds + time.monotonic() - self._began,
        )
        if not self._stopped.is_set():
            report_progress(progress, self._on_progress)
        return max(PAUSE, (time.monotonic() - began) / MAX_SHARE)


def report_progress(progress: DrainProgress, on_progress: OnProgress | None) -> None:
    """Log the progress and call `on_progress`. An error of `on_progress` is logged and does not end the drain."""
    logger.info(
        "drain progress: topic=%(topic)s round=%(round)s done=%(done)s claimed=%(claimed)s seconds=%(seconds).0f"
        " tasks_per_second=%(rate).0f",
        {**asdict(progress), "rate": progress.done / progress.seconds if progress.seconds else 0},
    )
    if on_progress is not None:
        try:
            on_progress(progress)
        except Exception:
            logger.exception("on_progress failed")
