"""The contract of handlers: their protocol, the arguments that they get, and what their results and errors mean.

A runner calls handlers: a worker, a composite, a consumer, a drain of Spark. Each runner asks `HandlerFunction` which
of its values a function gets: the task comes first, then what the runner supplies by name.
"""

import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import takewhile
from typing import Any, Protocol, TypeAlias, runtime_checkable

from airflow_provider_taskq.queue import Decision, InvalidArgument, InvalidTask, Json, Result, Task, UnreadablePayload
from airflow_provider_taskq.queue.arguments import DurationLike
from airflow_provider_taskq.queue.models import UNDECIDED_DELAY
from airflow_provider_taskq.worker.batches import Batch, Exceptions, name_of
from airflow_provider_taskq.worker.executors import final, then

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

HandlerOutcome: TypeAlias = Decision | Result | str | None  # a text is the name of a result
Decisions: TypeAlias = Mapping[Task, Decision]
TaskFunction: TypeAlias = (
    Callable[[Task], HandlerOutcome | Future[Any]]
    | Callable[[Task, Batch], HandlerOutcome | Future[Any]]
    | Callable[[Task], Awaitable[HandlerOutcome]]
    | Callable[[Task, Batch], Awaitable[HandlerOutcome]]
)
BatchFunction: TypeAlias = Callable[[Batch], Mapping[Task, HandlerOutcome] | HandlerOutcome | Future[Any]]


@runtime_checkable
class WorkHandler(Protocol):
    """Decides on batches of tasks. A worker calls it from all its threads.

    A handler may have a method `open()`, which the worker calls at its start, before it polls. It raises an error if
    the handler cannot be set up. A handler may have a method `open_batches(size)`, which returns how many batches of
    this size may be open while their Futures run; by default one for each thread of the worker.
    """

    def handle(self, batch: Batch) -> Decisions | Future[Decisions]:
        """Return a decision on each task of the batch, or a Future of these. An exception fails all tasks.

        Any thread may complete the Future. The worker cancels the Future if it abandons the batch.
        """

    def close(self) -> None:
        """End the threads and processes of the handler. A later call of `handle` starts them again."""


@dataclass(frozen=True, slots=True)
class HandlerFunction:
    """A function of the user, and the names of the values that its runner passes after the first argument.

    `by_position` has the names of the values that directly follow the first argument, `by_name` those of the others.
    """

    function: Callable[..., Any]
    by_position: tuple[str, ...] = ()
    by_name: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, function: Callable[..., Any], runner: str, supplied: Collection[str], first: str = "the task"
    ) -> "HandlerFunction":
        """Decide which values a function gets.

        The first positional parameter gets the task. Each other parameter that has one of the names of `supplied` gets
        this value, with or without a default. Other parameters keep their defaults. What `functools.partial` has bound
        stays. A function without a signature, as some functions of C, gets the task only.

        :param runner: the name of the runner, for errors.
        :param first: what the runner passes as the first argument, for errors.
        :raises InvalidArgument: if the function takes no positional argument, or has a parameter without a default that
            the runner does not supply.
        """
        if not callable(function):
            raise InvalidArgument(f"{runner} needs a function of {first}, not a {type(function).__name__}")
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            return cls(function)
        call = f"{runner} calls {name_of(function)} with {first}"
        if not parameters or parameters[0].kind not in (*_POSITIONAL, inspect.Parameter.VAR_POSITIONAL):
            raise InvalidArgument(f"{call}, but the function takes no positional argument")
        bound = function.keywords if isinstance(function, partial) else ()
        others = [each for each in parameters[1:] if each.kind not in _VARIABLE]
        wanted = [each for each in others if each.name in supplied and each.name not in bound]
        for each in others:
            if each not in wanted and each.default is inspect.Parameter.empty:
                raise InvalidArgument(f"{call}, and has no value for its parameter {each.name!r}: {_rule(supplied)}")
        pairs = zip(others, wanted, strict=False)
        leading = list(takewhile(lambda pair: pair[0] is pair[1] and pair[0].kind in _POSITIONAL, pairs))
        later = [each.name for each in wanted[len(leading) :] if each.kind is not inspect.Parameter.POSITIONAL_ONLY]
        return cls(function, tuple(each.name for each, _ in leading), tuple(later))

    @property
    def name(self) -> str:
        """The name of the function, for logs and errors."""
        return name_of(self.function)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the values that the function gets."""
        return self.by_position + self.by_name

    def __call__(self, first: Any, /, **supplied: Any) -> Any:
        """Call the function with its first argument, and with those of the supplied values that it gets."""
        if not self.by_position and not self.by_name:
            return self.function(first)
        return self.function(
            first, *(supplied[name] for name in self.by_position), **{name: supplied[name] for name in self.by_name}
        )


def _rule(supplied: Collection[str]) -> str:
    if not supplied:
        return "give it a default"
    return f"a parameter after the first one is named {' or '.join(supplied)}, or has a default"


class TaskResultException(Exception):
    """A handler raises this error to end the task, or the batch, with another result than FAILURE.

    The parameters are those of `Decision`.
    """

    def __init__(
        self,
        result: Result | str = Result.FAILURE,
        continued: bool | None = None,
        message: Json = None,
        delay: DurationLike | None = None,
    ) -> None:
        made = Result.of(result)
        super().__init__(made.name if message is None else f"{made.name}: {message}")
        self.decision = Decision(made, message, None, continued, delay)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments, because Exception would pickle the message only."""
        made = self.decision
        return type(self), (made.result, made.continued, made.message, made.delay)


class HandlerFailed(Exception):
    """A handler raised the cause of this error.

    The class distinguishes errors of handlers from errors of the queue.
    """


class ForeignDecision(Exception):
    """A handler or a step returned a decision on a task that it did not get."""


def decision_of(outcome: object) -> Decision:
    """Convert the outcome of a handler to a decision.

    Anything but a Decision, a Result, the name of a result or None is a mistake of the program: a failure that is not
    retried.
    """
    if outcome is None:
        return _SUCCESS
    if isinstance(outcome, Decision):
        return outcome
    if isinstance(outcome, Result):
        return Decision(outcome)
    if isinstance(outcome, str) and outcome.upper() in Result.__members__:
        return Decision(Result.of(outcome))
    shown = repr(outcome[:40]) if isinstance(outcome, str) else f"a {type(outcome).__name__}"
    error = TypeError(
        f"a handler returned {shown}: expected a Decision, a Result or its name, None for SUCCESS, or UNDECIDED"
    )
    return Decision(Result.FAILURE, error=error, delay=_NO_RETRY)


def is_undecided(decision: Decision) -> bool:
    """Return whether a handler decided with UNDECIDED."""
    return decision.result is Result.SUSPENSION and decision.delay == UNDECIDED.delay


def decisions_of(outcome: object, tasks: Iterable[Task]) -> dict[Task, Decision]:
    """Convert a mapping of outcomes by task, or one outcome for all tasks, to decisions."""
    if isinstance(outcome, Mapping):
        return {task: decision_of(each) for task, each in outcome.items()}
    return dict.fromkeys(tasks, decision_of(outcome))


def decision_on(error: BaseException, success_on: Exceptions = ()) -> Decision:
    """Convert an exception to a decision.

    A TaskResultException has its own decision. An exception of `success_on` means SUCCESS, any other one FAILURE.
    """
    if not isinstance(error, TaskResultException):
        return _SUCCESS if isinstance(error, success_on) else Decision(Result.FAILURE, error=error)
    made = error.decision
    if made.result is not Result.FAILURE:
        return made
    return Decision(made.result, made.message, error, made.continued)


def decide(outcome: object, success_on: Exceptions = ()) -> Decision:
    """Convert the outcome of a call, or of its Future, which is done, to a decision. An error is a decision, too."""
    while isinstance(outcome, Future):
        # Not raised here, so that its trace has no frames of the Future. It may be SystemExit: it fails this task only.
        error = CancelledError() if outcome.cancelled() else outcome.exception(0)
        if error is not None:
            return decision_on(error, success_on)
        outcome = outcome.result(0)
    return decision_of(outcome)


def handle_batch(handler: WorkHandler, batch: Batch) -> dict[Task, Decision]:
    """Call a handler, wait for its Future if it returns one, and return a decision on each task.

    Raises the exceptions of the handler, and ForeignDecision for a decision on a task of another batch.
    """
    name = name_of(handler)
    return complete_decisions(name, batch.tasks, batch.result_of(start_batch(handler, batch), name))


def start_batch(handler: WorkHandler, batch: Batch) -> Decisions | Future[Decisions]:
    """Call a handler with the tasks whose payload can be decoded, and fail the other ones."""
    failed = failures_of_unreadable(batch.tasks)
    if not failed:
        return handler.handle(batch)
    if len(failed) == len(batch.tasks):
        return failed
    part = batch.part(task for task in batch.tasks if task not in failed)
    decided = handler.handle(part)
    return then([decided], lambda: {**failed, **complete_decisions(name_of(handler), part.tasks, final(decided))})


def failures_of_unreadable(tasks: Iterable[Task]) -> dict[Task, Decision]:
    """Return FAILURE, with the reason, for each task whose payload cannot be decoded."""
    return {
        task: Decision(Result.FAILURE, error=InvalidTask(task.payload.reason))
        for task in tasks
        if isinstance(task.payload, UnreadablePayload)
    }


def complete_decisions(name: str, tasks: Sequence[Task], decided: Mapping[Task, Decision]) -> dict[Task, Decision]:
    """Return a decision on each of these tasks. Fail a task without a decision, with an error that has `name`.

    Raises ForeignDecision for a decision on another task.
    """
    if len(decided) == len(tasks) and all(decided.get(task) is not None for task in tasks):
        return dict(decided)
    known = set(tasks)
    if foreign := [str(getattr(task, "sequence", task)) for task in decided if task not in known]:
        raise ForeignDecision(f"{name} returned decisions for tasks that it did not get: {', '.join(foreign[:10])}")
    missing = Decision(Result.FAILURE, error=f"{name} made no decision on this task")
    return {task: decided.get(task) or missing for task in tasks}


_SUCCESS = Decision(Result.SUCCESS)
_NO_RETRY = timedelta(seconds=-1)
UNDECIDED = Decision(Result.SUSPENSION, delay=UNDECIDED_DELAY)
"""A handler returns this value if it made no decision: the task is READY again in its old place, and the attempt is not
counted. A drain tries the task no second time."""
