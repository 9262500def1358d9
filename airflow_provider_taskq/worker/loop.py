"""The base of a worker's loops: a thread that calls the handler, and commits what it or its Futures decided."""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from typing import Any

from airflow_provider_taskq.queue import Decision, LeaseLost, Task
from airflow_provider_taskq.queue.backoff import Backoff
from airflow_provider_taskq.worker.commit import BatchCommitter
from airflow_provider_taskq.worker.groups import join_batches
from airflow_provider_taskq.worker.lease import InFlightBatch
from airflow_provider_taskq.worker.runtime import WorkerRuntime
from airflow_provider_taskq.worker.watchdog import HandlerStuck


class _Replaced(BaseException):
    """Another thread goes on with the loop, because a handler was stuck in this thread."""


class Loop(ABC):
    """Base class of the loops of a worker. Each has a thread and a session, and room for some open batches.

    If a handler returns a Future, its batch is open until the Future is done. Then the thread commits the batch.
    """

    def __init__(self, runtime: WorkerRuntime, room: int) -> None:
        self._runtime = runtime
        self._session = runtime.session()
        self._committer = BatchCommitter(runtime, self._session)
        self._backoff = Backoff()
        self._room = room
        self._open: set[InFlightBatch] = set()
        self._decided: deque[tuple[InFlightBatch, Any]] = deque()  # with what the handler returned
        self._following: deque[InFlightBatch] = deque()  # of groups, in whose turn they are
        self._handling: InFlightBatch | None = None  # the batch whose handler runs in the thread
        self._lock = threading.Lock()
        self.thread = self._new_thread()

    @abstractmethod
    def _work(self) -> None:
        """Work until the worker stops."""

    def _commit(self, batch: InFlightBatch, decisions: Mapping[Task, Decision]) -> None:
        self._committer.complete(batch, decisions)

    def _on_lease_lost(self, error: LeaseLost) -> None:
        """React to a LeaseLost of a step."""
        raise error

    def _replace_thread(self, stuck: InFlightBatch) -> None:
        """Go on in another thread if the handler of this batch runs in the thread of the loop."""
        with self._lock:
            if self._handling is not stuck:
                return
            self._handling = None
            self._decided.append((stuck, None))
            thread = self._new_thread()
            thread.start()  # before a stop can see it
            self.thread = thread

    def _new_thread(self) -> threading.Thread:
        return threading.Thread(target=self._run, name=f"taskq {self._runtime.config.name}", daemon=True)

    def _run(self) -> None:
        try:
            self._work()
        except _Replaced:
            return
        self._session.close()

    def _run_step(self, step: Callable[[], bool | None]) -> bool | None:
        """Run one step and return its result. After an error, call `on_fatal`, pause, and return None."""
        wakes = self._runtime.idle_wait.wakes()
        try:
            try:
                result = step()
            except LeaseLost as error:
                self._on_lease_lost(error)
            else:
                self._backoff.reset()
                return result
        except Exception as error:  # noqa: BLE001 -- a worker survives all errors
            self._runtime.listeners.on_fatal(error)
            self._runtime.idle_wait.sleep(wakes, self._backoff.next())
        return None

    def _has_decided(self) -> bool:
        return bool(self._decided)

    def _has_room(self) -> bool:
        return len(self._open) < self._room

    def _handle(self, batch: InFlightBatch) -> None:
        """Call the handler, and commit what it decided, or leave the batch open."""
        batch.replace_thread = partial(self._replace_thread, batch)
        with self._lock:
            self._handling = batch
        returned = self._runtime.call_handler(batch)
        with self._lock:
            if self.thread is not threading.current_thread():
                raise _Replaced
            self._handling = None
        if isinstance(returned, Future):
            self._leave_open(batch, returned)
        else:
            self._end(batch, returned)

    def _leave_open(self, batch: InFlightBatch, future: Future[Any]) -> None:
        self._open.add(batch)
        activity = ExitStack()

        def decide(_: object = None) -> None:
            with self._lock:
                if batch not in self._open:
                    return
                self._open.remove(batch)
                self._decided.append((batch, future))
            activity.close()
            self._runtime.handler_ended(batch)
            self._runtime.idle_wait.wake_decided()

        def abandon() -> None:
            future.cancel()
            decide()

        name = f"a Future of {self._runtime.handler_name}"
        activity.enter_context(batch.batch.running(name, lambda: "(not done)\n", abandon))
        future.add_done_callback(decide)
        if batch.batch.cancelled.is_set():  # abandoned before `running` registered the function
            abandon()

    def _go_on(self) -> None:
        """End all batches that are decided, and handle those that follow in their groups."""
        while self._decided or self._following:
            if self._decided:
                self._end(*self._decided.popleft())
            else:
                self._handle(self._following.popleft())

    def _finish(self) -> None:
        """End the open batches after the last poll."""
        while self._open or self._decided:
            self._runtime.idle_wait.wait_for(self._has_decided)
            self._run_step(self._go_on)

    def _end(self, batch: InFlightBatch, returned: Any) -> None:
        outcome = self._runtime.outcome(batch, returned)
        if isinstance(outcome, BaseException):
            self._committer.fail(batch, outcome)
        elif outcome is not None:
            self._commit(batch, outcome)
        elif isinstance(batch.abandoned_for, HandlerStuck):
            self._committer.fail(batch, batch.abandoned_for)
        if batch.next is not None and batch.next.abandoned_for is None:  # else the lease is lost
            self._follow(batch, batch.next)

    def _follow(self, ended: InFlightBatch, following: InFlightBatch) -> None:
        """Let the next batch of a group start, or release the rest of the group."""
        groups = self._runtime.config.groups
        failed = groups is not None and any(map(groups.stops_after, ended.committed.values()))
        if not failed and not self._runtime.stopping.is_set():
            self._following.append(following)
        elif (rest := join_batches(following)) is not None:
            self._committer.release(rest)
