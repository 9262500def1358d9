"""`each`: handlers that call a function for each task, in threads or processes, in an executor or an event loop."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextvars import copy_context
from typing import Any

from airflow_provider_taskq.queue import Decision, Result, Task
from airflow_provider_taskq.worker.batches import Batch, Exceptions, name_of
from airflow_provider_taskq.worker.handlers import (
    BatchHandler,
    FunctionHandler,
    HandlerOutcome,
    TaskFunction,
    WorkHandler,
    decision_of,
    decision_of_call,
    decision_on,
)
from airflow_provider_taskq.worker.processes import ProcessHandler
from airflow_provider_taskq.worker.threads import EventLoopThread, ThreadPool

_ABANDONED = Decision(Result.FAILURE, error="the batch was abandoned")


def each(
    function: TaskFunction,
    *,
    threads: int = 1,
    processes: int = 0,
    concurrency: int = 100,
    executor: Executor | None = None,
    success_on: Exceptions = (),
) -> BatchHandler:
    """Return a handler that calls a function for each task: `task -> decision`.

    If the function has a parameter `batch`, it gets the batch. It returns a Decision or a Result, or raises
    TaskResultException; None means SUCCESS. Any other exception fails its task only.

    The function may return a `concurrent.futures.Future` of its decision, which any thread may complete. The handler
    calls the function for all tasks of the batch before it waits for the Futures.

    :param threads: tasks that run at once in threads, for all batches together; with 1, one after another.
    :param processes: tasks that run at once in child processes, which import the function by its name. The follow-ups
        and hooks that the function adds to `batch` must pickle.
    :param concurrency: tasks that a coroutine function handles at once, on one event loop.
    :param executor: an executor of threads, such as a ThreadPoolExecutor, that calls the function. The caller shuts it
        down.
    :param success_on: exceptions that mean SUCCESS, such as `psycopg.errors.UniqueViolation` of a write that an earlier
        attempt has committed.
    :raises InvalidArgument: if the function has another parameter without a default.
    """
    if executor is not None and (threads != 1 or processes or inspect.iscoroutinefunction(function)):
        raise ValueError("executor cannot be combined with threads, processes or a coroutine function")
    if inspect.iscoroutinefunction(function):
        return AsyncHandler(function, success_on, concurrency)
    if processes:
        return ProcessHandler(function, success_on, processes)
    if executor is not None:
        return ExecutorHandler(function, success_on, executor)
    return ThreadHandler(function, success_on, threads)


def handler_of(given: WorkHandler | TaskFunction) -> WorkHandler:
    """Return a handler as it is, and wrap a function of one task with `each`."""
    return given if isinstance(given, WorkHandler) else each(given)


class ThreadHandler(FunctionHandler):
    """Calls a function for each task, in the worker's thread or in threads of its own."""

    def __init__(self, function: Callable[..., Any], success_on: Exceptions, threads: int = 1) -> None:
        if threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        super().__init__(function, success_on)
        self._threads = threads
        self._pool: ThreadPool | None = None
        self._lock = threading.Lock()

    def handle(self, batch: Batch) -> Mapping[Task, Decision]:
        """Return the decision on each task. Start no more tasks after the batch is abandoned."""
        if self._threads == 1 or len(batch.tasks) == 1:
            started = {task: self._start(task, batch) for task in batch.tasks if not batch.cancelled.is_set()}
            return {task: self._finish(outcome, batch) for task, outcome in started.items()}
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPool(self._threads, "taskq handler")
            pool = self._pool
        futures = {task: pool.submit(self._in_thread, pool, task, batch) for task in batch.tasks}
        return {task: future.result() for task, future in futures.items()}

    def close(self) -> None:
        """End the threads. Do not wait for a stuck thread."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def _start(self, task: Task, batch: Batch) -> Decision | Future[HandlerOutcome]:
        try:
            outcome = self._call(task, batch)
            return outcome if isinstance(outcome, Future) else decision_of(outcome)
        except BaseException as error:  # noqa: BLE001 -- also SystemExit: it fails this task only
            return decision_on(error, self._success_on)

    def _finish(self, started: Decision | Future[HandlerOutcome], batch: Batch) -> Decision:
        if isinstance(started, Decision):
            return started
        try:
            return decision_of(batch.result_of(started, name_of(self._function)))
        except BaseException as error:  # noqa: BLE001 -- as above
            return decision_on(error, self._success_on)

    def _in_thread(self, pool: ThreadPool, task: Task, batch: Batch) -> Decision:
        slot = pool.slot()
        try:
            with batch.running(f"{name_of(self._function)} for task {task.sequence}", cancel=slot.abandon):
                if batch.cancelled.is_set():
                    return _ABANDONED
                return self._finish(self._start(task, batch), batch)
        finally:
            slot.end()


class ExecutorHandler(ThreadHandler):
    """Calls a function for each task in an executor of the caller."""

    def __init__(self, function: Callable[..., Any], success_on: Exceptions, executor: Executor) -> None:
        if isinstance(executor, ProcessPoolExecutor):
            raise TypeError("a ProcessPoolExecutor cannot share the batch: use each(function, processes=...)")
        super().__init__(function, success_on)
        self._executor = executor

    def handle(self, batch: Batch) -> Mapping[Task, Decision]:
        """Return the decision on each task. Wait for Futures in the worker's thread, not in the executor's."""
        submitted = {
            task: self._executor.submit(copy_context().run, self._start_by_executor, task, batch)
            for task in batch.tasks
        }
        return {task: self._decide(future, batch) for task, future in submitted.items()}

    def _start_by_executor(self, task: Task, batch: Batch) -> Decision | Future[HandlerOutcome]:
        with batch.running(f"{name_of(self._function)} for task {task.sequence}"):
            return _ABANDONED if batch.cancelled.is_set() else self._start(task, batch)

    def _decide(self, submitted: Future[Decision | Future[HandlerOutcome]], batch: Batch) -> Decision:
        try:
            return self._finish(batch.result_of(submitted, name_of(self._function)), batch)
        except BaseException as error:  # noqa: BLE001 -- the batch was abandoned, or the executor cancelled the call
            return decision_on(error)


class AsyncHandler(FunctionHandler):
    """Awaits a coroutine function for each task, on one event loop for all batches."""

    def __init__(self, function: Callable[..., Any], success_on: Exceptions, concurrency: int) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {concurrency}")
        super().__init__(function, success_on)
        self._concurrency = concurrency
        self._loop = EventLoopThread("taskq event loop")
        self._semaphore: asyncio.Semaphore | None = None

    def handle(self, batch: Batch) -> Mapping[Task, Decision]:
        """Return the decision on each task."""
        return self._loop.run(self._decide_all(batch), batch, f"{name_of(self._function)} on the event loop")

    def close(self) -> None:
        """Cancel the coroutines that still run, and end the loop."""
        self._loop.close()
        self._semaphore = None

    async def _decide_all(self, batch: Batch) -> dict[Task, Decision]:
        if self._semaphore is None:
            self._semaphore = asyncio.Semaphore(self._concurrency)
        semaphore = self._semaphore
        decisions = await asyncio.gather(*(self._decide(task, batch, semaphore) for task in batch.tasks))
        return dict(zip(batch.tasks, decisions, strict=True))

    async def _decide(self, task: Task, batch: Batch, semaphore: asyncio.Semaphore) -> Decision:
        async with semaphore:
            return await decision_of_call(lambda: self._call(task, batch), self._success_on)
