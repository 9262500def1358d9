"""Handlers: what decides on a batch of tasks, made of functions of one task or of functions of many."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor, Future
from datetime import timedelta
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

from airflow_provider_taskq.queue import Decision, Json, Result, Task
from airflow_provider_taskq.queue.encoding import json_text
from airflow_provider_taskq.worker.batches import Batch
from airflow_provider_taskq.worker.futures import result_of

Outcome: TypeAlias = Decision | Result | None
TaskFunction: TypeAlias = (
    Callable[[Task], Outcome | Future[Any]]
    | Callable[[Task, Batch], Outcome | Future[Any]]
    | Callable[[Task], Awaitable[Outcome]]
    | Callable[[Task, Batch], Awaitable[Outcome]]
)
BatchFunction: TypeAlias = Callable[[Batch], Mapping[Task, Outcome] | Outcome | Future[Any]]
Exceptions: TypeAlias = type[BaseException] | tuple[type[BaseException], ...]


@runtime_checkable
class WorkHandler(Protocol):
    """Decides on batches of tasks, several at a time where the worker has several threads."""

    def handle(self, batch: Batch) -> Mapping[Task, Decision] | Future[Mapping[Task, Decision]]:
        """Returns a decision for each task of the batch, or a Future of them. An exception is a FAILURE of all tasks.

        Any thread may complete the Future. If the worker gives the batch up, it cancels the Future.
        """

    def close(self) -> None:
        """Ends what the handler holds, such as threads and processes; a later call of `handle` makes them again."""


@runtime_checkable
class BatchHandler(WorkHandler, Protocol):
    """A handler that returns its decisions, and no Future of them, as those of `each` and `batch` do."""

    def handle(self, batch: Batch) -> Mapping[Task, Decision]:
        """Returns a decision for each task of the batch. An exception is a FAILURE of all tasks."""


class TaskResultException(Exception):
    """Raised by a handler: the task, or the batch, ends with this result instead of FAILURE."""

    def __init__(
        self,
        result: Result | str = Result.FAILURE,
        continued: bool | None = None,
        message: Json = None,
        delay: timedelta | None = None,
    ) -> None:
        made = Result.of(result)
        super().__init__(made.name if message is None else f"{made.name}: {message}")
        self.decision = Decision(made, message, None, continued, delay)

    def __reduce__(self) -> tuple[Any, ...]:
        """How it comes back from another process."""
        made = self.decision
        return type(self), (made.result, made.continued, made.message, made.delay)


class ForeignDecision(Exception):
    """A handler decided on a task that is none of its batch."""


def each(
    function: TaskFunction,
    *,
    threads: int = 1,
    processes: int = 0,
    concurrency: int = 100,
    executor: Executor | None = None,
    success_on: Exceptions = (),
) -> BatchHandler:
    """A handler that calls a function for each task: `task -> decision`, or `(task, work) -> decision`.

    A Decision or a Result is returned or raised (TaskResultException); None is SUCCESS, any other exception FAILURE,
    of that task alone. The tasks of a batch are taken one after another, or by so many `threads` or `processes`
    at a time, for all batches of the handler together. A function for processes is found there by its name, and
    what it does to `work` has to pickle. A coroutine function runs on one event loop, `concurrency` tasks at a time.

    A function may return a `concurrent.futures.Future` of its decision, which any thread may complete: the function is
    called for all tasks of the batch, and then the handler waits for their Futures. `executor`: an executor of threads,
    such as a ThreadPoolExecutor, that calls the function; the caller shuts it down. `success_on`: exceptions that mean
    SUCCESS, such as `psycopg.errors.UniqueViolation` of a write that another try has done before.
    """
    if executor is not None and (threads != 1 or processes or inspect.iscoroutinefunction(function)):
        raise ValueError("an executor calls functions, not coroutines, and takes the place of threads and processes")
    if inspect.iscoroutinefunction(function):
        from airflow_provider_taskq.worker.asynchronous import EachAsync

        return EachAsync(function, takes_batch(function), concurrency, success_on)
    if processes:
        from airflow_provider_taskq.worker.processes import EachInProcess

        return EachInProcess(function, takes_batch(function), processes, success_on)
    from airflow_provider_taskq.worker.executors import Each, EachByExecutor

    called = cast("Callable[..., Outcome | Future[Outcome]]", function)
    if executor is not None:
        return EachByExecutor(called, takes_batch(function), executor, success_on)
    return Each(called, takes_batch(function), threads, success_on)


def batch(function: BatchFunction, *, success_on: Exceptions = ()) -> BatchHandler:
    """A handler that calls a function once for each batch: `work -> {task: decision}`.

    One Decision or Result instead of a mapping is that of all tasks, None is SUCCESS, an exception FAILURE of all, or
    SUCCESS of all if it is one of `success_on`. The function may return a `concurrent.futures.Future` of these, which
    any thread may complete.
    """
    return _Batch(function, success_on)


class _Batch:
    """A handler made of a function of a whole batch."""

    def __init__(self, function: BatchFunction, success_on: Exceptions) -> None:
        self._function = function
        self._success_on = success_on

    def handle(self, batch: Batch) -> Mapping[Task, Decision]:
        """Calls the function, and takes its word."""
        try:
            decided = result_of(self._function(batch), batch, name_of(self._function))
        except self._success_on as error:
            decided = decision_on(error, self._success_on)
        if not isinstance(decided, Mapping):
            return dict.fromkeys(batch.tasks, decision_of(decided))
        return {task: decision_of(outcome) for task, outcome in decided.items()}

    def close(self) -> None:
        """Nothing to end."""

    def __repr__(self) -> str:
        return name_of(self._function)


def decision_of(outcome: object) -> Decision:
    """What a function returned, as a decision; TypeError for what is none."""
    if outcome is None:
        return _SUCCESS
    if isinstance(outcome, Decision):
        json_text(outcome.message)  # ValueError for what cannot be stored
        return outcome
    if isinstance(outcome, Result):
        return Decision(outcome)
    raise TypeError(f"a handler returns a Decision, a Result or None, not a {type(outcome).__name__}")


def decision_on(error: BaseException, success_on: Exceptions = ()) -> Decision:
    """What an exception decides: its own result, SUCCESS if it is one of `success_on`, else FAILURE with its trace."""
    if not isinstance(error, TaskResultException):
        return _SUCCESS if isinstance(error, success_on) else Decision(Result.FAILURE, error=error)
    made = error.decision
    if made.result is not Result.FAILURE:
        return made
    return Decision(made.result, made.message, error, made.continued)


def handle_batch(handler: WorkHandler, batch: Batch) -> dict[Task, Decision]:
    """Calls a handler, waits for the Future that it may return, and returns a decision for each task of the batch.

    Raises what the handler raised or completed its Future with, and ForeignDecision.
    """
    return completed(handler, batch, result_of(handler.handle(batch), batch, name_of(handler)))


def completed(handler: WorkHandler, batch: Batch, decided: Mapping[Task, Decision]) -> dict[Task, Decision]:
    """The decisions on a batch, in its order: FAILURE naming the handler where one is missing.

    ForeignDecision where one is on a task of another batch.
    """
    foreign = [task for task in decided if task not in batch]
    if foreign:
        named = ", ".join(str(getattr(task, "sequence", task)) for task in foreign[:10])
        raise ForeignDecision(f"{name_of(handler)} decided on what is not of its batch: sequence {named}")
    missing: Decision | None = None
    made: dict[Task, Decision] = {}
    for task in batch.tasks:
        found = decided.get(task)
        if found is None:
            missing = missing or Decision(Result.FAILURE, error=f"{name_of(handler)} made no decision on this task")
            found = missing
        made[task] = found
    return made


def handler_of(given: WorkHandler | TaskFunction) -> WorkHandler:
    """A handler as it is, and a function as one of each task."""
    return given if isinstance(given, WorkHandler) else each(given)


def takes_batch(function: Callable[..., Any]) -> bool:
    """Whether a function of a task wants the batch, too."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        given = [each for each in inspect.signature(function).parameters.values() if each.kind in kinds]
    except ValueError:
        return False
    return len([each for each in given if each.default is inspect.Parameter.empty]) >= 2


def name_of(what: object) -> str:
    """How people call a handler or a function: by its own name where it has one."""
    name = getattr(what, "__qualname__", None) or getattr(what, "name", None)
    return str(name) if name else repr(what)


_SUCCESS = Decision(Result.SUCCESS)
