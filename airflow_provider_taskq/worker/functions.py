"""`each` and `batch`: handlers that call a function for each task, or for each batch."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from airflow_provider_taskq.queue import Decision, Result, Task
from airflow_provider_taskq.queue.arguments import to_integer
from airflow_provider_taskq.queue.errors import picklable_error
from airflow_provider_taskq.worker.batches import Batch, Exceptions
from airflow_provider_taskq.worker.executors import (
    CallExecutor,
    EventLoop,
    OtherExecutor,
    Threads,
    attempt,
    final,
    stack_of_tasks,
    then,
)
from airflow_provider_taskq.worker.handlers import (
    BatchFunction,
    Decisions,
    HandlerFunction,
    TaskFunction,
    WorkHandler,
    decide,
    decision_of,
    decision_on,
    decisions_of,
)
from airflow_provider_taskq.worker.processes import CallFailed, Processes


def each(
    function: TaskFunction,
    *,
    threads: int = 1,
    processes: int = 0,
    concurrency: int = 100,
    executor: Executor | None = None,
    success_on: Exceptions = (),
) -> WorkHandler:
    """Return a handler that calls a function for each task: `task -> decision`.

    If the function has a parameter `batch`, it gets the batch. It returns a Decision or a Result, or raises
    TaskResultException; None means SUCCESS. Any other exception fails its task only.

    The function may return a `concurrent.futures.Future` of its decision, which any thread may complete. Meanwhile no
    thread waits for it.

    :param threads: tasks that run at once in threads, for all batches together; with 1, one after another.
    :param processes: tasks that run at once in child processes, which import the function by its name. The follow-ups
        and hooks that the function adds to `batch` must pickle.
    :param concurrency: tasks that a coroutine function handles at once, on one event loop. While coroutines or Futures
        run, a worker has batches of this many tasks open, and at least one batch.
    :param executor: an executor of threads, such as a ThreadPoolExecutor, that calls the function. The caller shuts it
        down.
    :param success_on: exceptions that mean SUCCESS, such as `psycopg.errors.UniqueViolation` of a write that an earlier
        attempt has committed.
    :raises InvalidArgument: if the function has another parameter without a default.
    """
    for name, value, least in (("threads", threads, 1), ("processes", processes, 0), ("concurrency", concurrency, 1)):
        to_integer(value, name, least)
    is_coroutine = inspect.iscoroutinefunction(function)
    if executor is not None and (threads != 1 or processes or is_coroutine):
        raise ValueError("executor cannot be combined with threads, processes or a coroutine function")
    if is_coroutine:
        return CoroutineHandler(function, success_on, concurrency)
    if processes:
        return ProcessHandler(function, success_on, Processes(processes))
    threaded = OtherExecutor(executor) if executor else Threads(threads, "taskq handler") if threads > 1 else None
    return EachHandler(function, success_on, threaded, None if threaded else concurrency)


def batch(function: BatchFunction, *, success_on: Exceptions = (), concurrency: int | None = None) -> WorkHandler:
    """Return a handler that calls `function(batch)` once for each batch.

    The function returns a dict of outcomes by task, or one outcome for all tasks; None means SUCCESS. A
    task that is missing from the dict fails. The function may also return a `concurrent.futures.Future` of one of
    these, which any thread may complete. An exception fails all tasks of the batch.

    :param success_on: exceptions that mean SUCCESS for all tasks.
    :param concurrency: batches that a worker may have open while their Futures run; None for one in each thread.
    """
    if concurrency is not None:
        to_integer(concurrency, "concurrency", 1)
    return BatchFunctionHandler(function, success_on, concurrency)


def handler_of(given: WorkHandler | TaskFunction) -> WorkHandler:
    """Return a handler as it is, and wrap a function of one task with `each`."""
    return given if isinstance(given, WorkHandler) else each(given)


class EachHandler:
    """Calls a function for each task, in the thread of the worker or in an executor."""

    def __init__(
        self,
        function: Callable[..., Any],
        success_on: Exceptions,
        executor: CallExecutor | None,
        concurrency: int | None = None,
    ) -> None:
        self._concurrency = concurrency
        self._function = HandlerFunction.of(function, "a worker", ("batch",))
        self.name = self._function.name  # for logs and errors
        self._success_on = success_on
        self._executor = executor

    def open(self) -> None:
        """Raise InvalidArgument if the executor cannot run the function."""
        if self._executor is not None:
            self._executor.open(self._function)

    def open_batches(self, size: int) -> int | None:
        """Return how many batches of this size a worker may have open; None for one in each of its threads."""
        return self._concurrency and max(1, self._concurrency // size)

    def handle(self, batch: Batch) -> Decisions | Future[Decisions]:
        """Return the decision on each task, or a Future of them. Start no task after the batch is abandoned."""
        started: dict[Task, Any] = {}
        for task in batch.tasks:
            if self._executor is not None:
                name = f"{self.name} for task {task.sequence}"
                started[task] = self._executor.submit(batch, name, self._call_of(task, batch))
            elif batch.cancelled.is_set():
                break
            else:
                try:
                    outcome = self._function(task, batch=batch)
                    started[task] = outcome if isinstance(outcome, Future) else decision_of(outcome)
                except BaseException as error:  # noqa: BLE001 -- also SystemExit: it fails this task only
                    started[task] = decision_on(error, self._success_on)
        if not any(isinstance(outcome, Future) for outcome in started.values()):
            return started
        return then(started.values(), lambda: {task: self._decide(task, started[task], batch) for task in started})

    def close(self) -> None:
        """End the threads or processes. Do not wait for a stuck one."""
        if self._executor is not None:
            self._executor.close()

    def _call_of(self, task: Task, batch: Batch) -> Callable[[], Any]:
        return partial(self._function, task, batch=batch)

    def _decide(self, task: Task, outcome: Any, batch: Batch) -> Decision:  # noqa: ARG002 -- for processes
        return decide(outcome, self._success_on)


class CoroutineHandler(EachHandler):
    """Awaits a coroutine function for each task, on one event loop for all batches."""

    def __init__(self, function: Callable[..., Any], success_on: Exceptions, concurrency: int) -> None:
        self._loop = EventLoop("taskq event loop")
        super().__init__(function, success_on, self._loop, concurrency)
        self._room_size = concurrency
        self._room = asyncio.Semaphore(concurrency)

    def handle(self, batch: Batch) -> Future[Decisions]:
        """Return a Future of the decision on each task."""
        call = partial(self._function, batch=batch)
        return self._loop.submit(
            batch, self.name, partial(decide_all, batch, self.name, call, batch.tasks, self._success_on, self._room)
        )

    def close(self) -> None:
        """Cancel the coroutines that still run, and end the loop."""
        self._loop.close()
        self._room = asyncio.Semaphore(self._room_size)  # the old one belongs to the ended loop


async def decide_all(
    batch: Batch,
    name: str,
    function: Callable[[Task], Awaitable[Any]],
    tasks: Sequence[Task],
    success_on: Exceptions = (),
    room: asyncio.Semaphore | None = None,
) -> dict[Task, Decision]:
    """Await a function for all tasks at once, in one call of the loop, as a call for each costs several times as much.

    :param room: bounds how many are awaited at once.
    """

    async def decide_later(task: Task) -> Decision:
        try:
            async with room or nullcontext():
                return decision_of(await function(task))
        except BaseException as error:  # noqa: BLE001 -- also SystemExit, which would end the loop
            return decision_on(error, success_on)

    started = [asyncio.create_task(decide_later(task)) for task in tasks]
    with batch.running(f"the tasks of {name}", stack_of_tasks(started)):
        return dict(zip(tasks, await asyncio.gather(*started), strict=True))


class ProcessHandler(EachHandler):
    """Calls a function for each task in a child process.

    If the process dies, its task fails with the exit code or signal. Such a task is not redelivered: the failure uses
    an attempt, so the retry policy of the topic stops a task that kills every process.
    """

    def _call_of(self, task: Task, batch: Batch) -> Callable[[], Any]:
        return partial(_decide_in_process, self._function, self._success_on, batch.for_task(task))

    def _decide(self, task: Task, outcome: Any, batch: Batch) -> Decision:
        try:
            decision, handled = final(outcome)
        except CallFailed as error:
            return Decision(Result.FAILURE, error=error.args[0])
        except BaseException as error:  # noqa: BLE001 -- such as that of an abandoned batch
            return decision_on(error)
        batch.adopt(handled, task)
        return decision  # type: ignore[no-any-return]  # sent by _decide_in_process


def _decide_in_process(function: HandlerFunction, success_on: Exceptions, batch: Batch) -> tuple[Decision, Batch]:
    """Handle one task in a child process. Return the decision, and the batch with its follow-ups and hooks."""
    [task] = batch.tasks
    outcome = attempt(lambda: batch.result_of(function(task, batch=batch), function.name))
    decision = decide(outcome, success_on)
    return replace(decision, error=picklable_error(decision.error)), batch


class BatchFunctionHandler:
    """The handler that `batch` returns."""

    def __init__(self, function: BatchFunction, success_on: Exceptions, concurrency: int | None) -> None:
        self._concurrency = concurrency
        self._function = HandlerFunction.of(function, "a worker", (), "the batch")
        self.name = self._function.name  # for logs and errors
        self._success_on = success_on

    def handle(self, batch: Batch) -> Decisions | Future[Decisions]:
        """Call the function and return its decisions, or a Future of them."""
        outcome = attempt(partial(self._function, batch))
        return then([outcome], lambda: self._decisions(outcome, batch))

    def open_batches(self, size: int) -> int | None:  # noqa: ARG002 -- the size makes no difference
        """Return how many batches a worker may have open; None for one in each of its threads."""
        return self._concurrency

    def close(self) -> None:
        """Do nothing: the handler has no threads."""

    def _decisions(self, outcome: Any, batch: Batch) -> Decisions:
        try:
            decided = final(outcome)
        except self._success_on as error:
            decided = decision_on(error, self._success_on)
        return decisions_of(decided, batch.tasks)
