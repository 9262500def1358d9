"""What TaskQProcessOperator hears of its worker: numbers for Airflow's metrics and for its log."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow_provider_taskq import metrics
from airflow_provider_taskq.queue import Decision, Result, Task
from airflow_provider_taskq.queue.errors import error_summary
from airflow_provider_taskq.worker import WorkerListener

PROGRESS_EVERY = 30.0
FAILURES_LOGGED = 10


class DrainListener(WorkerListener):
    """Counts what is polled and decided, and logs the progress and the first failures."""

    def __init__(self, topic: str, log: Any) -> None:  # an operator's: its type is private to Airflow
        self._topic = topic
        self._log = log
        self._said = time.monotonic()
        self._handled = 0
        self._failures = 0

    def on_start(self, tasks: Sequence[Task]) -> float:
        """Counts what was polled; the trace of a batch is when that was."""
        metrics.polled(self._topic, tasks)
        return time.monotonic()

    def on_complete(self, trace: float, decisions: Mapping[Task, Decision]) -> None:
        """Counts what was decided, and tells how long the batch took."""
        now = time.monotonic()
        metrics.timing(metrics.RUN_TIME, timedelta(seconds=now - trace), topic=self._topic)
        for result, number in Counter(decision.result for decision in decisions.values()).items():
            metrics.count(metrics.COMPLETED, number, topic=self._topic, result=result.name)
        self._handled += len(decisions)  # from several threads: it may be a little behind
        if now - self._said >= PROGRESS_EVERY:
            self._said = now
            self._log.info("%d tasks handled so far.", self._handled)
        self._log_failures({task: each for task, each in decisions.items() if each.result is Result.FAILURE})

    def _log_failures(self, failed: Mapping[Task, Decision]) -> None:
        """Logs the first failures of the drain, each in one line without its traceback."""
        for task, decision in failed.items():
            self._failures += 1
            if self._failures <= FAILURES_LOGGED:
                summary = error_summary(decision.error) or "no error was given"
                self._log.warning("%s (sequence %d) failed: %s", task.identifier, task.sequence, summary)
