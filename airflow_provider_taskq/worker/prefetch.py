"""Prefetching: one thread polls batches ahead, the other threads handle them."""

from collections import deque

from airflow_provider_taskq.worker.lease import InFlightBatch
from airflow_provider_taskq.worker.loop import Loop
from airflow_provider_taskq.worker.poll_loop import BasePollLoop
from airflow_provider_taskq.worker.runtime import WorkerRuntime


class Prefetcher(BasePollLoop):
    """Polls while fewer than `prefetch` tasks wait to be handled, as one owner for all threads that handle batches.

    Its threads wait for each other with the runtime's `IdleWait`, whose lock guards the batches.
    """

    def __init__(self, runtime: WorkerRuntime) -> None:
        super().__init__(runtime, 0)
        self._waiting: deque[InFlightBatch] = deque()

    def take(self) -> InFlightBatch | None:
        """Remove a batch, if there is one, under the lock. A stop releases those that are left, with their lease."""
        if not self._waiting or self._runtime.stopping.is_set():
            return None
        self._runtime.idle_wait.wake_decided()  # there is room again
        return self._waiting.popleft()

    def _capacity(self) -> int:
        return min(self._runtime.config.size, self._runtime.idle_wait.wait_for(self._room_left, or_end=True))

    def _room_left(self) -> int:
        left = self._runtime.config.prefetch - sum(len(batch.batch.tasks) for batch in self._waiting)
        return 0 if self._runtime.stopping.is_set() else max(0, left)

    def _dispatch(self, batch: InFlightBatch) -> None:
        self._waiting.append(batch)
        self._runtime.idle_wait.wake_decided()


class HandleLoop(Loop):
    """Handles and commits the batches of a Prefetcher."""

    def __init__(self, runtime: WorkerRuntime, room: int, prefetcher: Prefetcher) -> None:
        super().__init__(runtime, room)
        self._prefetcher = prefetcher

    def _work(self) -> None:
        while not self._runtime.stopping.is_set():
            self._run_step(self._take_once)
        self._finish()

    def _take_once(self) -> None:
        self._go_on()
        found = self._runtime.idle_wait.wait_for(self._next, or_end=True)
        if isinstance(found, InFlightBatch) and found.abandoned_for is None:  # else it was abandoned while it waited
            self._handle(found)

    def _next(self) -> InFlightBatch | bool | None:
        return self._has_decided() or (self._prefetcher.take() if self._has_room() else None)


def prefetching_loops(runtime: WorkerRuntime) -> list[Loop]:
    """Make the loops of a worker that prefetches."""
    prefetcher = Prefetcher(runtime)
    return [prefetcher, *(HandleLoop(runtime, room, prefetcher) for room in runtime.rooms())]
