"""Handlers: they return a decision for each task of a batch. `batch` makes one from a function of a batch."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, Protocol, TypeAlias, runtime_checkable

from airflow_provider_taskq.queue import Decision, Json, Result, Task
from airflow_provider_taskq.queue.encoding import json_text
from airflow_provider_taskq.worker.batches import Batch, Exceptions, name_of

Outcome: TypeAlias = Decision | Result | None
TaskFunction: TypeAlias = (
    Callable[[Task], Outcome | Future[Any]]
    | Callable[[Task, Batch], Outcome | Future[Any]]
    | Callable[[Task], Awaitable[Outcome]]
    | Callable[[Task, Batch], Awaitable[Outcome]]
)
BatchFunction: TypeAlias = Callable[[Batch], Mapping[Task, Outcome] | Outcome | Future[Any]]


@runtime_checkable
class WorkHandler(Protocol):
    """Decides on batches of tasks. A worker with several threads calls it from all of them."""

    def handle(self, batch: Batch) -> Mapping[Task, Decision] | Future[Mapping[Task, Decision]]:
        """Returns a decision for each task of the batch, or a Future of these. An exception is a FAILURE of all tasks.

        Any thread may complete the Future. The worker cancels the Future if it abandons the batch.
        """

    def close(self) -> None:
        """Ends threads and processes of the handler. A later call of `handle` starts them again."""


@runtime_checkable
class BatchHandler(WorkHandler, Protocol):
    """A handler that returns decisions and no Future, as those of `each` and `batch` do."""

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
        """Pickles its arguments, so that another process can raise it."""
        made = self.decision
        return type(self), (made.result, made.continued, made.message, made.delay)


class ForeignDecision(Exception):
    """A handler returned a decision on a task outside its batch."""


def batch(function: BatchFunction, *, success_on: Exceptions = ()) -> BatchHandler:
    """A handler that calls a function once for each batch: `batch -> {task: decision}`.

    The function may return one Decision or Result for all tasks; None is SUCCESS. An exception is FAILURE of all tasks,
    or SUCCESS if it is one of `success_on`. The function may return a `concurrent.futures.Future` of these, which any
    thread may complete.
    """
    return BatchFunctionHandler(function, success_on)


class BatchFunctionHandler:
    """Calls a function with the whole batch."""

    def __init__(self, function: BatchFunction, success_on: Exceptions) -> None:
        self._function = function
        self._success_on = success_on

    def handle(self, batch: Batch) -> Mapping[Task, Decision]:
        """Calls the function and returns its decisions."""
        try:
            decided = batch.result_of(self._function(batch), name_of(self._function))
        except self._success_on as error:
            decided = decision_on(error, self._success_on)
        if not isinstance(decided, Mapping):
            return dict.fromkeys(batch.tasks, decision_of(decided))
        return {task: decision_of(outcome) for task, outcome in decided.items()}

    def close(self) -> None:
        """Does nothing: the handler has no threads."""

    def __repr__(self) -> str:
        return name_of(self._function)


def decision_of(outcome: object) -> Decision:
    """Converts what a function returned. TypeError if it is no decision, ValueError if it cannot be stored."""
    if outcome is None:
        return _SUCCESS
    if isinstance(outcome, Decision):
        json_text(outcome.message)  # ValueError for what cannot be stored
        return outcome
    if isinstance(outcome, Result):
        return Decision(outcome)
    raise TypeError(f"a handler must return a Decision, a Result or None, not {type(outcome).__name__}")


def decision_on(error: BaseException, success_on: Exceptions = ()) -> Decision:
    """Converts an exception: its own result, SUCCESS if it is one of `success_on`, else FAILURE with its trace."""
    if not isinstance(error, TaskResultException):
        return _SUCCESS if isinstance(error, success_on) else Decision(Result.FAILURE, error=error)
    made = error.decision
    if made.result is not Result.FAILURE:
        return made
    return Decision(made.result, made.message, error, made.continued)


def handle_batch(handler: WorkHandler, batch: Batch) -> dict[Task, Decision]:
    """Calls a handler, waits for its Future if it returns one, and returns a decision for each task, in batch order.

    A task without a decision is a FAILURE that names the handler. Raises what the handler raises, and ForeignDecision
    for a decision on a task of another batch.
    """
    decided: Mapping[Task, Decision] = batch.result_of(handler.handle(batch), name_of(handler))
    if foreign := [task for task in decided if task not in batch]:
        sequences = ", ".join(str(getattr(task, "sequence", task)) for task in foreign[:10])
        raise ForeignDecision(f"{name_of(handler)} returned decisions for tasks outside its batch: {sequences}")
    decisions: dict[Task, Decision] = {}
    for task in batch.tasks:
        found = decided.get(task)
        if found is None:
            found = Decision(Result.FAILURE, error=f"{name_of(handler)} made no decision on this task")
        decisions[task] = found
    return decisions


def takes_batch(function: Callable[..., Any]) -> bool:
    """Whether a function of a task has a second parameter, for the batch."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        given = [each for each in inspect.signature(function).parameters.values() if each.kind in kinds]
    except ValueError:
        return False
    return len([each for each in given if each.default is inspect.Parameter.empty]) >= 2


_SUCCESS = Decision(Result.SUCCESS)
