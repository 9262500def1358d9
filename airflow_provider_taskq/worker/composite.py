"""Composites: handlers of named steps with dependencies, which run in a worker's threads or as a Spark plan."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from copy import copy
from typing import Any, Self, TypeAlias, TypeVar

from airflow_provider_taskq.queue import Decision, InvalidArgument, Result, Task
from airflow_provider_taskq.queue.arguments import to_integer
from airflow_provider_taskq.worker.batches import Batch
from airflow_provider_taskq.worker.composite_run import CompositeRun, CompositeThreads, Context, Step, StepMode
from airflow_provider_taskq.worker.handlers import Decisions, HandlerFunction, HandlerOutcome

StepFunction: TypeAlias = Callable[..., Any]
After: TypeAlias = str | StepFunction | Iterable[str | StepFunction]
F = TypeVar("F", bound=StepFunction)
_State: TypeAlias = tuple[str, tuple[Step, ...], tuple[Context, ...], tuple[int | None, int]]


class Composite:
    """A handler of named steps. A step starts when the steps that it comes `after` have ended.

        orders = Composite("orders")

        @orders.step()
        def load(task: Task, batch: Batch) -> None: ...

        @orders.step(after=load)
        def check(task: Task) -> Result: ...

    Steps that do not depend on each other run at once. A step gets the tasks that all steps before it have continued.
    The decisions of all steps on a task are merged by priority. After its first batch, a composite accepts no more
    steps. It pickles without its threads. `steps` and `contexts` are in the order in which they were added.

    :param threads: tasks of parallel steps that run at once; by default four more than there are processors, at most
        32.
    :param concurrency: batches that run at once in threads of the composite, so that `handle` returns a Future, and a
        thread of a worker may have several batches open. With 0, `handle` runs the batch in the calling thread.
    """

    def __init__(self, name: str, *, threads: int | None = None, concurrency: int = 0) -> None:
        to_integer(concurrency, "concurrency", 0)
        if threads is not None:
            to_integer(threads, "threads", 1)
        self.__setstate__((name, (), (), (threads, concurrency)))

    def open_batches(self, size: int) -> int | None:  # noqa: ARG002 -- the size makes no difference
        """Return how many batches a worker may have open; None for one in each of its threads."""
        return self._options[1] or None

    def step(
        self, *, name: str | None = None, after: After = (), mode: StepMode | str = StepMode.PARALLEL
    ) -> Callable[[F], F]:
        """Add a function of one task, as a decorator: `task -> outcome`; or with the mode BATCH, of all tasks at once.

        If the function has a parameter `batch`, it gets the batch. It returns a Decision or a Result, or raises
        TaskResultException; None means SUCCESS. Any other exception fails its task only. A function of all tasks
        returns a mapping with a decision on each of them, or one outcome for all; its exception fails all tasks. A
        function may return a `concurrent.futures.Future` of its outcome. A coroutine function is awaited, for all tasks
        at once if `mode` is PARALLEL.

        :param name: by default the name of the function.
        :param after: names or functions of steps that end before this one starts.
        :raises InvalidArgument: if the name is taken, a step of `after` is missing, the function has another parameter
            without a default, or the composite has started.
        """

        def added(function: F) -> F:
            kind = StepMode(mode)
            first = "the tasks" if kind is StepMode.BATCH else "the task"
            called = HandlerFunction.of(function, f"composite {self.name!r}", ("batch",), first)
            step = Step(name or _name_of(function), called, self._names(after), kind)
            if any(each.name == step.name for each in self.steps):
                raise InvalidArgument(f"composite {self.name!r} has a step {step.name!r} already")
            self._change(steps=(*self.steps, step))
            return function

        return added

    def context(self, function: Context) -> Context:
        """Add a function `(batch, decisions) -> decisions or None` that runs after the last step, as a decorator.

        The decisions that it returns, one on each task, are merged with those of the steps. An exception fails all
        tasks. The function may call `batch.in_commit` and `batch.after_commit`.
        """
        self._change(contexts=(*self.contexts, function))
        return function

    def with_step(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        after: After = (),
        mode: StepMode | str = StepMode.PARALLEL,
    ) -> Self:
        """Return a copy with one more step. For the parameters see `step`."""
        copied = copy(self)
        copied.step(name=name, after=after, mode=mode)(function)
        return copied

    def open(self) -> None:
        """Raise InvalidArgument if the composite has no steps."""
        if not self.steps:
            raise InvalidArgument(f"composite {self.name!r} has no steps")

    def handle(self, batch: Batch) -> Decisions | Future[Decisions]:
        """Run a batch through the steps. Return the decision on each task, or with `concurrency` a Future of them."""
        self.open()
        self._has_started = True
        run = CompositeRun(self.name, self.steps, self.contexts, batch, self._threads)
        if not self._options[1]:
            return run.decisions()
        future = self._threads.batches.submit(batch, f"composite {self.name}", run.decisions)
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        return future

    def close(self) -> None:
        """Wait for the open batches. A later batch starts the composite again."""
        self._has_started = False
        for future in list(self._open):
            with suppress(CancelledError):
                future.exception()  # waits
        self._threads.loop.close()

    def _names(self, after: After) -> tuple[str, ...]:
        given = [after] if isinstance(after, str) or callable(after) else list(after)
        return tuple(dict.fromkeys(self._name(each) for each in given))

    def _name(self, given: str | StepFunction) -> str:
        found = [step.name for step in self.steps if given in (step.name, step.function.function)]
        if len(found) == 1:
            return found[0]
        name = given if isinstance(given, str) else _name_of(given)
        if found:
            raise InvalidArgument(f"composite {self.name!r}: {name!r} names several steps; give a step name")
        known = ", ".join(step.name for step in self.steps) or "none"
        raise InvalidArgument(f"composite {self.name!r} has no step {name!r} for `after`; its steps: {known}")

    def _change(self, **attributes: Any) -> None:
        if self._has_started:
            raise InvalidArgument(f"composite {self.name!r} has started and cannot be changed")
        self.__dict__.update(attributes)

    def __getstate__(self) -> _State:
        return self.name, self.steps, self.contexts, self._options

    def __setstate__(self, state: _State) -> None:
        self.name, self.steps, self.contexts, self._options = state
        size, concurrency = self._options
        self._threads = CompositeThreads(self.name, concurrency, size or min(32, (os.cpu_count() or 1) + 4))
        self._open: set[Future[Decisions]] = set()
        self._has_started = False

    def __repr__(self) -> str:
        return f"Composite({self.name!r}, steps={[step.name for step in self.steps]})"


def _name_of(function: StepFunction) -> str:
    return str(getattr(function, "__name__", None) or type(function).__name__)


# Batch steps that get, or continue, only some tasks of a batch


def matching(
    predicate: Callable[[Task], bool],
    function: Callable[..., Mapping[Task, HandlerOutcome] | HandlerOutcome],
    fallback: HandlerOutcome | Callable[[Task], HandlerOutcome] = Result.SUCCESS,
) -> Callable[[Sequence[Task], Batch], dict[Task, HandlerOutcome]]:
    """Return a batch step of a composite that passes the tasks for which `predicate` is true to `function`.

    :param function: a batch step: a function of the tasks, which may have a parameter `batch`.
    :param fallback: the outcome of the other tasks, or a function that returns the outcome of a task.
    """
    called = HandlerFunction.of(function, "a composite", ("batch",), "the tasks")

    def step(tasks: Sequence[Task], batch: Batch) -> dict[Task, HandlerOutcome]:
        chosen = [task for task in tasks if predicate(task)]
        returned = called(chosen, batch=batch) if chosen else {}
        decided = {task: fallback(task) if callable(fallback) else fallback for task in set(tasks).difference(chosen)}
        return {**decided, **(returned if isinstance(returned, Mapping) else dict.fromkeys(chosen, returned))}

    step.__name__ = getattr(function, "__name__", step.__name__)
    return step


def outdated(tasks: Sequence[Task]) -> dict[Task, Decision]:
    """Return FILTER for all tasks of an identifier except the one that was pushed last, which continues."""
    last = {task.identifier: task.sequence for task in sorted(tasks, key=lambda task: task.sequence)}
    return {
        task: Decision(Result.SUCCESS)
        if task.sequence == last[task.identifier]
        else Decision(Result.FILTER, f"outdated by task {last[task.identifier]} of the same batch")
        for task in tasks
    }


def repeated(tasks: Sequence[Task]) -> dict[Task, Decision]:
    """Return FAILURE for all tasks of an identifier that has several tasks in the batch. The other tasks continue."""
    counts = Counter(task.identifier for task in tasks)
    return {
        task: Decision(Result.SUCCESS)
        if counts[task.identifier] == 1
        else Decision(Result.FAILURE, error=f"one of {counts[task.identifier]} tasks of its identifier in one batch")
        for task in tasks
    }
