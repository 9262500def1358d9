"""What one worker of this process has done since it was made: counters, and how long its batches took."""

import threading
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_taskq.queue import Result

KEPT = 1000


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """A worker's counters: tasks by result, batches, and seconds from a batch's dispatch to its decision.

    The times are those of the last 1,000 batches; all are 0 before the first. `in_flight` counts tasks that are
    handled or ready to be, `given_up` those whose lease was lost, or which were stopped: they come again.
    """

    handled: int
    succeeded: int
    filtered: int
    suspended: int
    failed: int
    given_up: int
    in_flight: int
    batches: int
    minimum: float
    average: float
    median: float
    p90: float
    p95: float
    p99: float
    maximum: float


class Counters:
    """Counts, from any thread."""

    def __init__(self) -> None:
        self._results: Counter[Result] = Counter()
        self._times: deque[float] = deque(maxlen=KEPT)
        self._batches = self._in_flight = self._given_up = self._begun = self._polling = 0
        self._lock = threading.Lock()

    def taken(self, tasks: int) -> None:
        """So many tasks were polled."""
        with self._lock:
            self._in_flight += tasks
            self._begun += 1

    def decided(self, seconds: float) -> None:
        """A handler took so long."""
        with self._lock:
            self._batches += 1
            self._times.append(seconds)

    def ended(self, tasks: int, results: Iterable[Result]) -> None:
        """Of so many tasks these results were committed; the others are gone."""
        counted = Counter(results)
        with self._lock:
            self._in_flight -= tasks
            self._results.update(counted)
            self._given_up += tasks - counted.total()

    def poll_begins(self, own: int, again: bool = False) -> int | None:
        """A poll begins, along with which `own` tasks are completed; None where others are in flight.

        `again`: in place of one that has not ended.
        """
        with self._lock:
            self._polling += not again
            return self._begun if self._in_flight == own else None

    def is_quiet(self, quiet: int | None) -> bool:
        """Whether nothing has been in flight, or polled beside it, since that poll began, which has not ended yet."""
        with self._lock:
            return quiet == self._begun and self._polling == 1 and not self._in_flight

    def poll_ended(self, quiet: int | None) -> bool | None:
        """That poll has ended: whether nothing was in flight as long as it took; None where something is now."""
        with self._lock:
            self._polling -= 1
            return None if self._polling or self._in_flight else quiet == self._begun

    def snapshot(self) -> WorkerStatistics:
        """The counters as they are now."""
        with self._lock:
            results, times = Counter(self._results), sorted(self._times)
            batches, in_flight, given_up = self._batches, self._in_flight, self._given_up
        return WorkerStatistics(
            handled=results.total(),
            succeeded=results[Result.SUCCESS],
            filtered=results[Result.FILTER],
            suspended=results[Result.SUSPENSION],
            failed=results[Result.FAILURE],
            given_up=given_up,
            in_flight=in_flight,
            batches=batches,
            minimum=percentile(times, 0),
            average=sum(times) / len(times) if times else 0.0,
            median=percentile(times, 0.5),
            p90=percentile(times, 0.9),
            p95=percentile(times, 0.95),
            p99=percentile(times, 0.99),
            maximum=percentile(times, 1),
        )


def percentile(ascending: list[float], share: float) -> float:
    """The value that so large a share of the values does not exceed, interpolated; 0 of none."""
    if not ascending:
        return 0.0
    place = share * (len(ascending) - 1)
    below = int(place)
    above = min(below + 1, len(ascending) - 1)
    return ascending[below] + (ascending[above] - ascending[below]) * (place - below)
