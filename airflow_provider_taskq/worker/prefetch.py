"""Prefetching: one thread polls batches ahead into a buffer, the other threads handle them."""

import threading
from collections import deque
from collections.abc import Mapping, Sequence

from airflow_provider_taskq.queue import Decision, Task
from airflow_provider_taskq.queue.backoff import Backoff
from airflow_provider_taskq.worker.commit import BatchCommitter
from airflow_provider_taskq.worker.config import Pending
from airflow_provider_taskq.worker.lease import InFlightBatch
from airflow_provider_taskq.worker.poll_loop import BasePollLoop
from airflow_provider_taskq.worker.runtime import WorkerRuntime, WorkerStopped, WorkerThread


class PrefetchBuffer:
    """Batches that are polled and not yet handled. Has room for `tasks` tasks."""

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks
        self._batches: deque[InFlightBatch] = deque()
        self._rejected: list[InFlightBatch] = []
        self._ending = self._rejects = self._closed = False
        self._changed = threading.Condition()

    def capacity(self) -> int:
        """Wait for room, and return the number of tasks that fit. Return 0 after `end`."""
        with self._changed:
            self._changed.wait_for(lambda: self._ending or self._room() > 0)
            return 0 if self._ending else self._room()

    def put(self, batch: InFlightBatch) -> None:
        """Add a batch."""
        with self._changed:
            (self._rejected if self._rejects else self._batches).append(batch)
            self._changed.notify_all()

    def take(self) -> InFlightBatch | None:
        """Wait for the next batch and remove it. Return None when the buffer is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._batches)
            batch = self._batches.popleft() if self._batches else None
            self._changed.notify_all()
            return batch

    def end(self, *, reject: bool) -> None:
        """End the polls. With `reject`, keep all batches for `close`, so that `take` gets none of them."""
        with self._changed:
            self._ending, self._rejects = True, reject
            if reject:
                self._rejected += self._batches
                self._batches.clear()
            self._changed.notify_all()

    def close(self) -> Sequence[InFlightBatch]:
        """Let `take` return None when the buffer is empty. Return the rejected batches."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            return self._rejected

    def _room(self) -> int:
        return self._tasks - sum(len(batch.batch.tasks) for batch in self._batches)


class Prefetcher(BasePollLoop):
    """Polls while there is room in the buffer, as one owner for all threads that handle batches."""

    def __init__(self, runtime: WorkerRuntime, buffer: PrefetchBuffer) -> None:
        super().__init__(runtime)
        self._buffer = buffer

    def _capacity(self) -> int:
        return min(self._runtime.config.size, self._buffer.capacity())

    def _dispatch(self, batch: InFlightBatch) -> None:
        self._buffer.put(batch)

    def _on_end(self) -> None:
        reason = WorkerStopped("the worker stopped before this task was handled")
        for batch in self._buffer.close():
            if self._runtime.config.pending is Pending.RELEASE:
                batch.lease.abandon(batch, reason)
            elif batch.claim():
                self._committer.fail(batch, reason)


class HandleLoop:
    """Handles and commits the batches of the buffer one after another, in a thread."""

    def __init__(self, runtime: WorkerRuntime, buffer: PrefetchBuffer, inherited: InFlightBatch | None = None) -> None:
        self._runtime = runtime
        self._buffer = buffer
        self._inherited = inherited  # the batch that the previous loop is stuck in, to be FAILED
        self._session = runtime.session()
        self._committer = BatchCommitter(runtime, self._session)
        self._backoff = Backoff()
        self.thread = threading.Thread(target=self._run, name=f"taskq {runtime.config.name}", daemon=True)

    def replace(self, stuck: InFlightBatch, fail: bool) -> None:
        """Start another loop in place of this one, which is stuck in a batch."""
        self._runtime.threads.replace(self, HandleLoop(self._runtime, self._buffer, stuck if fail else None))

    def _run(self) -> None:
        try:
            if self._inherited is not None:
                self._commit(self._inherited, self._inherited.abandoned_for or RuntimeError("abandoned"))
            while self._runtime.threads.has(self) and (batch := self._buffer.take()) is not None:
                if batch.abandoned_for is not None:
                    continue  # the batch was abandoned while it was in the buffer
                outcome = self._runtime.run_handler(batch, self)
                if outcome is not None:
                    self._commit(batch, outcome)
        finally:
            self._session.close()
            self._runtime.threads.remove(self)

    def _commit(self, batch: InFlightBatch, outcome: Mapping[Task, Decision] | BaseException) -> None:
        try:
            if isinstance(outcome, BaseException):
                self._committer.fail(batch, outcome)
            else:
                self._committer.complete(batch, outcome)
            self._backoff.reset()
        except Exception as fatal:  # noqa: BLE001 -- a worker survives all errors
            self._runtime.listeners.on_fatal(fatal)
            self._runtime.stopped.wait(self._backoff.next())


def prefetching_threads(runtime: WorkerRuntime) -> list[WorkerThread]:
    """Make the threads of a worker that prefetches."""
    buffer = PrefetchBuffer(runtime.config.prefetch)
    reject = runtime.config.pending is not Pending.FINISH
    runtime.on_stopping.append(lambda: buffer.end(reject=reject))
    return [Prefetcher(runtime, buffer), *(HandleLoop(runtime, buffer) for _ in range(runtime.config.workers))]
