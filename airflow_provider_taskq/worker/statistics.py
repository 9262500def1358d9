"""Counters of one worker, and the durations of its handler calls."""

import threading
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from airflow_provider_taskq.queue import Decision, Result
from airflow_provider_taskq.worker.handlers import is_undecided

_KEPT_TIMES = 1000


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """A worker's counters since it was created: tasks by result, batches, and seconds of handler calls.

    The seconds are those of the last 1,000 batches, and 0 before the first. `in_flight` counts tasks that are handled
    or prefetched. `abandoned` counts tasks that were lost with a lease or abandoned at a stop; they are polled again.
    `undecided` counts tasks of a drain on which the handler returned UNDECIDED; `handled` does not include them.
    """

    handled: int
    succeeded: int
    filtered: int
    suspended: int
    failed: int
    abandoned: int
    in_flight: int
    batches: int
    minimum: float
    average: float
    median: float
    p90: float
    p95: float
    p99: float
    maximum: float
    leases_lost: int = 0
    undecided: int = 0


BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""The upper bounds, in seconds, between which `BatchDurations` counts batches."""


@dataclass(frozen=True, slots=True)
class BatchDurations:
    """How long the handler took for each batch since the worker was created.

    `counts` has the batches up to each bound of `BUCKETS`, and above the last; `total` has the sum of the seconds.
    """

    counts: tuple[int, ...]
    total: float

    def cumulative(self) -> list[tuple[str, int]]:
        """Upper bounds, the last one `+Inf`, with the number of batches that took no longer."""
        return list(zip([*map(str, BUCKETS), "+Inf"], accumulate(self.counts), strict=True))


class WorkerCounters:
    """The counters while a worker runs. Any thread may use them."""

    def __init__(self) -> None:
        self._results: Counter[Result | None] = Counter()  # None for undecided tasks
        self._times: deque[float] = deque(maxlen=_KEPT_TIMES)
        self._batches = self._in_flight = self._abandoned = self._started = self._polling = self._leases_lost = 0
        self._buckets = [0] * (len(BUCKETS) + 1)
        self._seconds = 0.0
        self._lock = threading.Lock()

    def polled(self, tasks: int) -> None:
        """Count a polled batch of this many tasks."""
        with self._lock:
            self._in_flight += tasks
            self._started += 1

    def handled(self, seconds: float) -> None:
        """Count a batch whose handler took this many seconds."""
        with self._lock:
            self._batches += 1
            self._times.append(seconds)
            self._buckets[bisect_left(BUCKETS, seconds)] += 1
            self._seconds += seconds

    def lease_lost(self) -> None:
        """Counts a lease that was lost."""
        with self._lock:
            self._leases_lost += 1

    def batch_durations(self) -> BatchDurations:
        """The durations of all batches."""
        with self._lock:
            return BatchDurations(tuple(self._buckets), self._seconds)

    def ended(self, tasks: int, committed: Iterable[Decision]) -> None:
        """Count the end of a batch: the results of committed decisions, and the other tasks as abandoned."""
        counted = Counter(None if is_undecided(decision) else decision.result for decision in committed)
        with self._lock:
            self._in_flight -= tasks
            self._results.update(counted)
            self._abandoned += tasks - counted.total()

    def poll_started(self, completing: int, *, retried: bool) -> int | None:
        """Count the start of a poll. Return a mark for `is_quiet` and `poll_ended`, or None if tasks are in flight.

        :param completing: tasks in flight that the same call completes.
        :param retried: whether the poll replaces a poll that got no answer.
        """
        with self._lock:
            self._polling += not retried
            return self._started if self._in_flight == completing else None

    def is_quiet(self, quiet: int | None) -> bool:
        """Return whether no task was in flight, and no other poll ran, since the poll of this mark started."""
        with self._lock:
            return quiet == self._started and self._polling == 1 and not self._in_flight

    def poll_ended(self, quiet: int | None) -> bool | None:
        """Count the end of a poll. Return whether no task was in flight during the poll.

        Return None if a task is in flight now.
        """
        with self._lock:
            self._polling -= 1
            return None if self._polling or self._in_flight else quiet == self._started

    def snapshot(self) -> WorkerStatistics:
        """Return the current values."""
        with self._lock:
            results, times = Counter(self._results), sorted(self._times)
            batches, in_flight, abandoned = self._batches, self._in_flight, self._abandoned
            leases_lost = self._leases_lost
        return WorkerStatistics(
            handled=results.total() - results[None],
            succeeded=results[Result.SUCCESS],
            filtered=results[Result.FILTER],
            suspended=results[Result.SUSPENSION],
            failed=results[Result.FAILURE],
            abandoned=abandoned,
            in_flight=in_flight,
            batches=batches,
            minimum=percentile(times, 0),
            average=sum(times) / len(times) if times else 0.0,
            median=percentile(times, 0.5),
            p90=percentile(times, 0.9),
            p95=percentile(times, 0.95),
            p99=percentile(times, 0.99),
            maximum=percentile(times, 1),
            leases_lost=leases_lost,
            undecided=results[None],
        )


def percentile(ascending: list[float], share: float) -> float:
    """Return the interpolated value that this share (0 to 1) of the values does not exceed; 0 for an empty list."""
    if not ascending:
        return 0.0
    place = share * (len(ascending) - 1)
    below = int(place)
    above = min(below + 1, len(ascending) - 1)
    return ascending[below] + (ascending[above] - ascending[below]) * (place - below)
