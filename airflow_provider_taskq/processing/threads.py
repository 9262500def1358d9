"""Functions of one task, called in the worker's own thread or by threads of the handler."""

import threading
from collections.abc import Callable, Mapping

from airflow_provider_taskq.processing.handling import Outcome, decision_of, decision_on, name_of
from airflow_provider_taskq.processing.pool import Pool
from airflow_provider_taskq.processing.work import Work
from airflow_provider_taskq.queue import Decision, Result, Task


class Each:
    """A handler that calls a function for each task."""

    def __init__(self, function: Callable[..., Outcome], takes_work: bool, threads: int = 1) -> None:
        if threads < 1:
            raise ValueError(f"a handler needs a thread at least, not {threads}")
        self._function = function
        self._takes_work = takes_work
        self._threads = threads
        self._pool: Pool | None = None
        self._lock = threading.Lock()

    def handle(self, work: Work) -> Mapping[Task, Decision]:
        """The function's word on each task; a batch that was given up is left where it is."""
        if self._threads == 1 or len(work.tasks) == 1:
            return {task: self._decide(task, work) for task in work.tasks if not work.cancelled.is_set()}
        pool = self._opened()
        made = {task: pool.submit(self._beside, pool, task, work) for task in work.tasks}
        return {task: future.result() for task, future in made.items()}

    def close(self) -> None:
        """Lets the threads end; one that is stuck is left behind."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def __repr__(self) -> str:
        return name_of(self._function)

    def _decide(self, task: Task, work: Work) -> Decision:
        """Calls the function for one task."""
        try:
            return decision_of(self._function(task, work) if self._takes_work else self._function(task))
        except BaseException as error:  # noqa: BLE001 -- also an exit: it is this task's failure and no other's
            return decision_on(error)

    def _beside(self, pool: Pool, task: Task, work: Work) -> Decision:
        """The same in a thread of the pool, which the worker can find, and which another replaces if it is stuck."""
        place = pool.place()
        try:
            with work.running(f"{name_of(self._function)} for task {task.sequence}", cancel=place.give_up):
                if work.cancelled.is_set():
                    return Decision(Result.FAILURE, error="the batch was given up")
                return self._decide(task, work)
        finally:
            place.end()

    def _opened(self) -> Pool:
        """The threads, made where there are none."""
        with self._lock:
            if self._pool is None:
                self._pool = Pool(self._threads, "taskq handler")
            return self._pool
