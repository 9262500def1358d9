"""Buffering: one thread polls ahead and keeps tasks ready, others handle them."""

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_provider_taskq.queue import Decision, Task
from airflow_provider_taskq.worker.config import Pending
from airflow_provider_taskq.worker.finishing import Finisher, WorkerStopped, decide
from airflow_provider_taskq.worker.lease import Run
from airflow_provider_taskq.worker.patience import BackOff
from airflow_provider_taskq.worker.rounds import Rounds

if TYPE_CHECKING:
    from airflow_provider_taskq.worker.runtime import Employed, WorkerRuntime


class Buffer:
    """Batches that are ready to be handled, of so many tasks in all."""

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks
        self._runs: deque[Run] = deque()
        self._left: list[Run] = []
        self._ending = self._clears = self._closed = False
        self._changed = threading.Condition()

    def room(self) -> int:
        """For how many more tasks there is room: waits for one at least; 0 where no more are wanted."""
        with self._changed:
            self._changed.wait_for(lambda: self._ending or self._room() > 0)
            return 0 if self._ending else self._room()

    def put(self, run: Run) -> None:
        """One more batch."""
        with self._changed:
            (self._left if self._clears else self._runs).append(run)
            self._changed.notify_all()

    def take(self) -> Run | None:
        """The next batch, waited for; None once it is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._runs)
            run = self._runs.popleft() if self._runs else None
            self._changed.notify_all()
            return run

    def end(self, *, clear: bool) -> None:
        """Wants no more; hands out no more either, where it is to be cleared."""
        with self._changed:
            self._ending, self._clears = True, clear
            if clear:
                self._left += self._runs
                self._runs.clear()
            self._changed.notify_all()

    def close(self) -> Sequence[Run]:
        """Nothing comes any more; returns what was cleared."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            return self._left

    def _room(self) -> int:
        return self._tasks - sum(len(run.batch.tasks) for run in self._runs)


class Feeder(Rounds):
    """Polls for as long as there is room in the buffer, as one owner for all who take from it."""

    def __init__(self, shift: "WorkerRuntime", buffer: Buffer) -> None:
        super().__init__(shift)
        self._buffer = buffer

    def _room(self) -> int:
        return min(self._shift.settings.size, self._buffer.room())

    def _take(self, run: Run) -> None:
        self._buffer.put(run)

    def _end(self) -> None:
        """Does with what is ready and not begun as the worker was told."""
        reason = WorkerStopped("the worker stopped before this task was begun")
        for run in self._buffer.close():
            if self._shift.settings.pending is Pending.RELEASE:
                run.tenure.give_up(run, reason)
            elif run.claim():
                self._finisher.fail(run, reason)


class Handler:
    """Handles what is in the buffer, one batch after another."""

    def __init__(self, shift: "WorkerRuntime", buffer: Buffer, inherited: Run | None = None) -> None:
        self._shift = shift
        self._buffer = buffer
        self._inherited = inherited  # a batch that its predecessor is stuck in, to be FAILED
        self._session = shift.session()
        self._finisher = Finisher(shift, self._session)
        self._back_off = BackOff()
        self._replaced = False
        self.thread = threading.Thread(target=self._work, name=f"taskq {shift.settings.name}", daemon=True)

    def hand_over(self, run: Run, to_fail: bool) -> None:
        """Lets another take this one's place."""
        self._replaced = True
        # first, so that a stop waits for one of both
        self._shift.employ(Handler(self._shift, self._buffer, run if to_fail else None))
        self._shift.left(self)

    def _work(self) -> None:
        """What the thread does."""
        try:
            if self._inherited is not None:
                self._end(self._inherited, self._inherited.reason or RuntimeError("given up"))
            while not self._replaced and (run := self._buffer.take()) is not None:
                if run.reason is None:  # else it was given up while it waited
                    self._handle(run)
        finally:
            self._session.close()
            self._shift.left(self)

    def _handle(self, run: Run) -> None:
        """Has a batch handled, and ends it."""
        run.hand = self
        outcome = decide(self._shift, run)
        if not run.claim():
            return  # given up meanwhile, by whoever then told of it
        if not isinstance(outcome, BaseException):
            self._shift.telling.on_callback(run.trace, outcome)
        self._end(run, outcome)

    def _end(self, run: Run, outcome: Mapping[Task, Decision] | BaseException) -> None:
        """Ends a batch; what is fatal is told, and followed by a pause."""
        try:
            self._finisher.end(run, outcome)
            self._back_off.reset()
        except Exception as fatal:  # noqa: BLE001 -- a worker goes on, whatever it is
            self._shift.telling.on_fatal(fatal)
            self._shift.over.wait(self._back_off.next())


def employ_buffered(shift: "WorkerRuntime") -> "list[Employed]":
    """Those who work in a shift with a buffer."""
    buffer = Buffer(shift.settings.prefetch)
    clear = shift.settings.pending is not Pending.FINISH
    shift.on_stopping.append(lambda: buffer.end(clear=clear))
    return [Feeder(shift, buffer), *(Handler(shift, buffer) for _ in range(shift.settings.workers))]
