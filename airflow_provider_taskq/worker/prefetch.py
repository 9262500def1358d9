"""Prefetching: one thread polls batches ahead into a buffer, the other threads handle them."""

import threading
from collections import deque
from collections.abc import Callable

from airflow_provider_taskq.worker.lease import InFlightBatch
from airflow_provider_taskq.worker.loop import Loop
from airflow_provider_taskq.worker.poll_loop import BasePollLoop
from airflow_provider_taskq.worker.runtime import WorkerRuntime


class PrefetchBuffer:
    """Batches that are polled and not yet handled. Has room for `tasks` tasks."""

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks
        self._batches: deque[InFlightBatch] = deque()
        self._changed = threading.Condition()
        self.has_ended = False

    def capacity(self) -> int:
        """Wait for room, and return the number of tasks that fit. Return 0 after `end`."""
        with self._changed:
            self._changed.wait_for(lambda: self.has_ended or self._room() > 0)
            return 0 if self.has_ended else self._room()

    def put(self, batch: InFlightBatch) -> None:
        """Add a batch."""
        with self._changed:
            self._batches.append(batch)
            self._changed.notify_all()

    def take(self, is_woken: Callable[[], bool]) -> InFlightBatch | None:
        """Wait for the next batch and remove it. Return None after `end`, or if `is_woken()`."""
        with self._changed:
            self._changed.wait_for(lambda: self.has_ended or self._batches or is_woken())
            batch = self._batches.popleft() if self._batches and not self.has_ended else None
            self._changed.notify_all()
            return batch

    def wait_for(self, is_woken: Callable[[], bool]) -> None:
        """Wait until `is_woken()`, which is called again after each `wake`."""
        with self._changed:
            self._changed.wait_for(is_woken)

    def wake(self) -> None:
        """Let the waiting threads call their `is_woken`."""
        with self._changed:
            self._changed.notify_all()

    def end(self) -> None:
        """Hand out no more batches. The worker releases those that are left, with their lease."""
        self.has_ended = True
        self.wake()

    def _room(self) -> int:
        return self._tasks - sum(len(batch.batch.tasks) for batch in self._batches)


class Prefetcher(BasePollLoop):
    """Polls while there is room in the buffer, as one owner for all threads that handle batches."""

    def __init__(self, runtime: WorkerRuntime, buffer: PrefetchBuffer) -> None:
        super().__init__(runtime, 0)
        self._buffer = buffer

    def _capacity(self) -> int:
        return min(self._runtime.config.size, self._buffer.capacity())

    def _dispatch(self, batch: InFlightBatch) -> None:
        self._buffer.put(batch)


class HandleLoop(Loop):
    """Handles and commits the batches of the buffer."""

    def __init__(self, runtime: WorkerRuntime, room: int, buffer: PrefetchBuffer) -> None:
        super().__init__(runtime, room)
        self._buffer = buffer

    def _wake(self) -> None:
        self._buffer.wake()

    def _work(self) -> None:
        while not self._buffer.has_ended or self._open or self._decided:
            self._run_step(self._take_once)

    def _take_once(self) -> None:
        self._go_on()
        if self._has_room() and not self._buffer.has_ended:
            batch = self._buffer.take(self._has_decided)
            if batch is not None and batch.abandoned_for is None:  # else it was abandoned while it was in the buffer
                self._handle(batch)
        elif self._open:
            self._buffer.wait_for(self._has_decided)


def prefetching_loops(runtime: WorkerRuntime) -> list[Loop]:
    """Make the loops of a worker that prefetches."""
    buffer = PrefetchBuffer(runtime.config.prefetch)
    runtime.on_stopping.append(buffer.end)
    return [Prefetcher(runtime, buffer), *(HandleLoop(runtime, room, buffer) for room in runtime.rooms())]
