"""Counters of one worker."""

import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_taskq.queue import Decision, Result, Task, metrics
from airflow_provider_taskq.queue.metrics import Metric, Recorder
from airflow_provider_taskq.worker.handlers import is_undecided


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """A worker's counters since it was created: tasks by result, and batches.

    `in_flight` counts tasks that are handled or prefetched. `abandoned` counts tasks that were lost with a lease or
    abandoned at a stop; they are polled again. `undecided` counts tasks of a drain on which the handler returned
    UNDECIDED; `handled` does not include them.
    """

    handled: int = 0
    succeeded: int = 0
    filtered: int = 0
    suspended: int = 0
    failed: int = 0
    abandoned: int = 0
    in_flight: int = 0
    batches: int = 0
    leases_lost: int = 0
    undecided: int = 0


# What recorders get of the counters, each of which has the name of a field of WorkerStatistics.
_RECORDED: dict[str, tuple[Metric, dict[str, str]]] = {
    "succeeded": (metrics.COMPLETED, {"result": "SUCCESS"}),
    "filtered": (metrics.COMPLETED, {"result": "FILTER"}),
    "suspended": (metrics.COMPLETED, {"result": "SUSPENSION"}),
    "failed": (metrics.COMPLETED, {"result": "FAILURE"}),
    "abandoned": (metrics.ABANDONED, {}),
    "leases_lost": (metrics.LEASE_LOST, {}),
}
_FIELDS = {Result[labels["result"]]: name for name, (_, labels) in _RECORDED.items() if labels}


class WorkerCounters:
    """The counters of a worker, which it also sends to recorders. Any thread may use them."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()  # by the fields of WorkerStatistics
        self._polling: set[object] = set()
        self._recorders: tuple[Recorder, ...] = ()
        self._lock = threading.Lock()

    def record_to(self, recorder: Recorder) -> None:
        """Send the counters to a recorder: what was counted so far, and each later event."""
        with self._lock:
            _record(recorder, {name: self._counts[name] for name in _RECORDED})
            self._recorders += (recorder,)

    def handled(self, seconds: float) -> None:
        """Record that a handler took this many seconds for a batch."""
        for record in self._recorders:
            record(metrics.RUN_TIME, seconds)

    def ended(self, tasks: int, committed: Collection[Decision]) -> None:
        """Count the end of a batch: the results of committed decisions, and the other tasks as abandoned."""
        results = [0] * len(Result)
        for decision in committed:
            results[decision.result] += 1
        undecided = sum(map(is_undecided, committed)) if results[Result.SUSPENSION] else 0
        results[Result.SUSPENSION] -= undecided
        numbers = {_FIELDS[Result(place)]: number for place, number in enumerate(results) if number}
        handled = len(committed) - undecided
        self.add(**numbers, handled=handled, undecided=undecided, abandoned=tasks - len(committed), in_flight=-tasks)

    def poll_started(self, poller: object, completing: int) -> int:
        """Note a poll, which completes some tasks in flight. It lasts until an answer, also that of a later poll.

        Return a mark for `is_quiet`, which has no match if other tasks are in flight.
        """
        with self._lock:
            self._polling.add(poller)
            return self._counts["batches"] if self._counts["in_flight"] == completing else -1

    def poll_ended(self, poller: object, tasks: Sequence[Task] = ()) -> None:
        """Note the end of the poll of this poller, and count the batch of the tasks that it found."""
        with self._lock:
            self._polling.discard(poller)
            self._counts["batches"] += bool(tasks)
            self._counts["in_flight"] += len(tasks)
        for record in self._recorders if tasks else ():
            metrics.record_polled(record, tasks)

    def is_quiet(self, since: int | None = None) -> bool:
        """Return whether no poll runs, no task is in flight, and no batch has started since the poll of this mark."""
        with self._lock:
            counts = self._counts
            return not self._polling and not counts["in_flight"] and since in (None, counts["batches"])

    def snapshot(self) -> WorkerStatistics:
        """Return the current values."""
        with self._lock:
            return WorkerStatistics(**self._counts)

    def add(self, **numbers: int) -> None:
        """Add to counters, by their names, and send the numbers to the recorders."""
        with self._lock:
            self._counts.update(numbers)
            recorders = self._recorders
        for recorder in recorders:
            _record(recorder, numbers)


def _record(recorder: Recorder, numbers: Mapping[str, int]) -> None:
    for name, number in numbers.items():
        if name in _RECORDED:
            metric, labels = _RECORDED[name]
            recorder(metric, number, **labels)
