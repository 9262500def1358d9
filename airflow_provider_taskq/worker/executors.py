"""Functions of one task, called in the worker's own thread or by threads of the handler."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextvars import copy_context

from airflow_provider_taskq.queue import Decision, Result, Task
from airflow_provider_taskq.worker.batches import Batch
from airflow_provider_taskq.worker.futures import result_of
from airflow_provider_taskq.worker.handlers import Exceptions, Outcome, decision_of, decision_on, name_of
from airflow_provider_taskq.worker.threads import Pool


class Each:
    """A handler that calls a function for each task."""

    def __init__(
        self,
        function: Callable[..., Outcome | Future[Outcome]],
        takes_batch: bool,
        threads: int = 1,
        success_on: Exceptions = (),
    ) -> None:
        if threads < 1:
            raise ValueError(f"a handler needs a thread at least, not {threads}")
        self._function = function
        self._takes_batch = takes_batch
        self._threads = threads
        self._success_on = success_on
        self._pool: Pool | None = None
        self._lock = threading.Lock()

    def handle(self, batch: Batch) -> Mapping[Task, Decision]:
        """The function's word on each task; a batch that was given up is left where it is."""
        if self._threads == 1 or len(batch.tasks) == 1:
            started = {task: self._start(task, batch) for task in batch.tasks if not batch.cancelled.is_set()}
            return {task: self._finish(outcome, batch) for task, outcome in started.items()}
        pool = self._opened()
        made = {task: pool.submit(self._beside, pool, task, batch) for task in batch.tasks}
        return {task: future.result() for task, future in made.items()}

    def close(self) -> None:
        """Lets the threads end; one that is stuck is left behind."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def __repr__(self) -> str:
        return name_of(self._function)

    def _start(self, task: Task, batch: Batch) -> Decision | Future[Outcome]:
        """Calls the function for one task; a Future that it returns may be completed later."""
        try:
            outcome = self._function(task, batch) if self._takes_batch else self._function(task)
            return outcome if isinstance(outcome, Future) else decision_of(outcome)
        except BaseException as error:  # noqa: BLE001 -- also an exit: it is this task's failure and no other's
            return decision_on(error, self._success_on)

    def _finish(self, started: Decision | Future[Outcome], batch: Batch) -> Decision:
        """The decision on one task, once its Future is completed."""
        if isinstance(started, Decision):
            return started
        try:
            return decision_of(result_of(started, batch, name_of(self._function)))
        except BaseException as error:  # noqa: BLE001 -- as above
            return decision_on(error, self._success_on)

    def _beside(self, pool: Pool, task: Task, batch: Batch) -> Decision:
        """The same in a thread of the pool, which the worker can find, and which another replaces if it is stuck."""
        place = pool.place()
        try:
            with batch.running(f"{name_of(self._function)} for task {task.sequence}", cancel=place.give_up):
                if batch.cancelled.is_set():
                    return Decision(Result.FAILURE, error="the batch was given up")
                return self._finish(self._start(task, batch), batch)
        finally:
            place.end()

    def _opened(self) -> Pool:
        """The threads, made where there are none."""
        with self._lock:
            if self._pool is None:
                self._pool = Pool(self._threads, "taskq handler")
            return self._pool


class EachByExecutor(Each):
    """A handler whose function is called for each task by an executor of the caller, who shuts it down."""

    def __init__(
        self,
        function: Callable[..., Outcome | Future[Outcome]],
        takes_batch: bool,
        executor: Executor,
        success_on: Exceptions = (),
    ) -> None:
        if isinstance(executor, ProcessPoolExecutor):
            raise TypeError("a ProcessPoolExecutor cannot share the batch: use each(function, processes=...)")
        super().__init__(function, takes_batch, 1, success_on)
        self._executor = executor

    def handle(self, batch: Batch) -> Mapping[Task, Decision]:
        """The function's word on each task. Waits in the worker's thread, so that no thread of the executor waits."""
        made = {task: self._executor.submit(copy_context().run, self._started_by, task, batch) for task in batch.tasks}
        return {task: self._decided(future, batch) for task, future in made.items()}

    def _started_by(self, task: Task, batch: Batch) -> Decision | Future[Outcome]:
        """Calls the function in a thread of the executor."""
        with batch.running(f"{name_of(self._function)} for task {task.sequence}"):
            if batch.cancelled.is_set():
                return Decision(Result.FAILURE, error="the batch was given up")
            return self._start(task, batch)

    def _decided(self, submitted: Future[Decision | Future[Outcome]], batch: Batch) -> Decision:
        """The decision on one task, once the executor has called the function and a Future of it is completed."""
        try:
            return self._finish(result_of(submitted, batch, name_of(self._function)), batch)
        except BaseException as error:  # noqa: BLE001 -- the batch was given up, or the executor cancelled the call
            return decision_on(error)
