"""Batches in flight: how many at once, and what becomes of them when the composite is closed."""

import threading
from collections.abc import Mapping
from concurrent.futures import Executor, Future
from contextvars import copy_context

from airflow_provider_taskq.queue import Decision, Task, TaskQueueError
from airflow_provider_taskq.worker.batches import Batch
from airflow_provider_taskq.worker.composite.running import Run
from airflow_provider_taskq.worker.composite.steps import Definition
from airflow_provider_taskq.worker.composite.threads import Threads

Landing = Future[Mapping[Task, Decision]]


class CompositeClosed(TaskQueueError):
    """The composite was closed while a batch was in flight, and fails those."""


class Engine:
    """Runs the batches of a composite in this process, until it is closed."""

    def __init__(
        self,
        definition: Definition,
        threads: int | None,
        concurrency: int,
        fail_pending: bool,
        executor: Executor | None = None,
    ) -> None:
        self._definition = definition
        self._threads = Threads(definition.name, threads, executor)
        self._concurrency = concurrency
        self._fail_pending = fail_pending
        self._flying: set[Landing] = set()
        self._telling: list[int] = []  # the threads that tell of a batch's end
        self._changed = threading.Condition()
        self._closed = False

    def submit(self, batch: Batch) -> Landing:
        """Sends a batch on its way, and returns what it will have decided; waits while there is no room for it."""
        landing: Landing = Future()
        with self._changed:
            while self._concurrency and len(self._flying) >= self._concurrency and not self._closed:
                self._changed.wait()
            if self._closed:
                raise self._refusal()
            self._flying.add(landing)
        if not self._concurrency and not self._fail_pending:
            self._fly(batch, landing)
            return landing
        name = f"taskq {self._definition.name} batch"
        thread = threading.Thread(target=copy_context().run, args=(self._fly, batch, landing), name=name, daemon=True)
        thread.start()
        if not self._concurrency:
            landing.exception()  # waits for its end
        return landing

    def close(self) -> None:
        """Lets the batches in flight end that were not given up, or fails all at once; then ends the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            if self._fail_pending:
                pending, self._flying = self._flying, set()
            else:
                pending = set()
                self._changed.wait_for(lambda: not self._flying)
        for landing in pending:
            landing.set_exception(self._refusal())
        with self._changed:
            self._changed.wait_for(self._all_told)
        self._threads.close()

    def _fly(self, batch: Batch, landing: Landing) -> None:
        """Runs a batch to its end, and tells it, unless it was failed meanwhile."""

        def stopped() -> bool:
            return landing.done() or batch.cancelled.is_set()

        outcome: Mapping[Task, Decision] | BaseException
        try:
            with batch.running(f"composite {self._definition.name}", cancel=lambda: self._give_up(landing)):
                outcome = Run(self._definition, batch, self._threads, stopped).decisions()
        except BaseException as error:  # noqa: BLE001 -- it is raised where the batch is waited for
            outcome = error
        self._land(landing, outcome)

    def _give_up(self, landing: Landing) -> None:
        """Waits no longer for a batch."""
        self._land(landing, InterruptedError(f"a batch of composite {self._definition.name!r} was given up"))

    def _land(self, landing: Landing, outcome: Mapping[Task, Decision] | BaseException) -> None:
        """Makes room for another batch, and tells of the end of this one; nothing where somebody has told already."""
        with self._changed:
            if landing not in self._flying:
                return
            self._flying.remove(landing)
            self._telling.append(threading.get_ident())
            self._changed.notify_all()
        try:
            _tell(landing, outcome)
        finally:
            with self._changed:
                self._telling.remove(threading.get_ident())
                self._changed.notify_all()

    def _all_told(self) -> bool:
        """Whether every end was told, but for what this thread tells, by which it may have been called."""
        return set(self._telling) <= {threading.get_ident()}

    def _refusal(self) -> CompositeClosed:
        return CompositeClosed(f"composite {self._definition.name!r} was closed")


def _tell(landing: Landing, outcome: Mapping[Task, Decision] | BaseException) -> None:
    """Tells what became of a batch."""
    if isinstance(outcome, BaseException):
        landing.set_exception(outcome)
    else:
        landing.set_result(outcome)
