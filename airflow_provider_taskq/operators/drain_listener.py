"""What TaskQProcessOperator hears of its worker: numbers for Airflow's metrics and for its log."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from airflow_provider_taskq import metrics
from airflow_provider_taskq.processing import WorkerListener
from airflow_provider_taskq.queue import Decision, Task

PROGRESS_EVERY = 30.0


class DrainListener(WorkerListener):
    """Counts what is polled and decided, and says now and then how far it is."""

    def __init__(self, topic: str, say: Callable[..., None]) -> None:
        self._topic = topic
        self._say = say
        self._said = time.monotonic()
        self._handled = 0

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
            self._say("%d tasks handled so far.", self._handled)
