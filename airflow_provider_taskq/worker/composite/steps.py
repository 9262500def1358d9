"""The steps of a composite: their definition, and calls of steps and contexts."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, TypeAlias

from airflow_provider_taskq.queue import Decision, InvalidArgument, Result, Task
from airflow_provider_taskq.queue.task_input import split_into_chunks
from airflow_provider_taskq.worker.batches import Batch, Rewrite, name_of
from airflow_provider_taskq.worker.composite.threads import CompositeThreads
from airflow_provider_taskq.worker.handlers import (
    complete_decisions,
    decision_of,
    decision_of_call,
    decision_on,
    decisions_of,
)
from airflow_provider_taskq.worker.parameters import HandlerFunction

StepFunction: TypeAlias = Callable[..., Any]
After: TypeAlias = str | StepFunction | Iterable[str | StepFunction]
Decisions: TypeAlias = Mapping[Task, Decision]
# Called as (step, tasks, proceed) instead of a step. `proceed()` runs the step and returns its decisions.
Around: TypeAlias = Callable[[str, Sequence[Task], Callable[[], Decisions]], Decisions]
# Called after the last step. Its decisions are merged with those of the steps.
Context: TypeAlias = Callable[[Batch, Decisions], Mapping[Task, Decision | Result] | None]


class StepMode(StrEnum):
    """How a step handles its tasks: several tasks at once, or one after another in the order of the batch."""

    PARALLEL = "PARALLEL"
    SEQUENTIAL = "SEQUENTIAL"


@dataclass(frozen=True, slots=True)
class Step:
    """A named function of one task, or of all tasks at once if `whole`. It runs after the steps of these names."""

    name: str
    function: HandlerFunction
    after: tuple[str, ...] = ()
    mode: StepMode = StepMode.PARALLEL
    whole: bool = False

    @property
    def is_coroutine(self) -> bool:
        """Whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(self.function.function)


@dataclass(frozen=True, slots=True)
class CompositeDefinition:
    """The steps of a composite in the order in which they were added, and its contexts, wrappers and rewrites.

    A step can only run after steps that were added before it, so there are no cycles.
    """

    name: str
    steps: tuple[Step, ...] = ()
    contexts: tuple[Context, ...] = ()
    around: tuple[Around, ...] = ()
    rewrites: tuple[Rewrite, ...] = ()

    def with_step(
        self, function: StepFunction, name: str | None, after: After, mode: StepMode, whole: bool
    ) -> "CompositeDefinition":
        """Return a copy with one more step.

        Raises InvalidArgument if the name of the step is taken, a step of `after` is unknown, or the function has a
        parameter without a default that is neither its first one nor `batch`.
        """
        runner, first = f"composite {self.name!r}", "the tasks" if whole else "the task"
        called = HandlerFunction.of(function, runner, ("batch",), first)
        step = Step(name or _name_of(function), called, self._names(after), StepMode(mode), whole)
        if any(each.name == step.name for each in self.steps):
            raise InvalidArgument(f"composite {self.name!r} has a step {step.name!r} already")
        return replace(self, steps=(*self.steps, step))

    def with_context(self, context: Context) -> "CompositeDefinition":
        """Return a copy with one more context."""
        return replace(self, contexts=(*self.contexts, context))

    def with_around(self, around: Around) -> "CompositeDefinition":
        """Return a copy with one more wrapper around each step."""
        return replace(self, around=(*self.around, around))

    def with_rewrite(self, rewrite: Rewrite) -> "CompositeDefinition":
        """Return a copy with one more rewrite."""
        return replace(self, rewrites=(*self.rewrites, rewrite))

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


def _name_of(function: StepFunction) -> str:
    return str(getattr(function, "__name__", None) or type(function).__name__)


def run_step(
    step: Step, tasks: Sequence[Task], batch: Batch, threads: CompositeThreads, around: Sequence[Around]
) -> dict[Task, Decision]:
    """Call a step with its tasks, and return a decision on each task.

    An exception fails the task of the call. An exception of a batch step, or of a wrapper, fails all tasks. A
    TaskResultException sets their result instead. A task without a decision fails. Raises ForeignDecision if the step
    decides on other tasks.
    """
    call: Callable[[], Decisions] = partial(_call_whole if step.whole else _call_each, step, tasks, batch, threads)
    for wrapper in reversed(around):
        call = partial(wrapper, step.name, tasks, call)
    try:
        with batch.running(f"step {step.name}"):
            decided: Decisions = call()
    except Exception as error:  # noqa: BLE001 -- any error fails these tasks
        decided = dict.fromkeys(tasks, decision_on(error))
    name = f"step {step.name!r}"
    if not isinstance(decided, Mapping):
        raise TypeError(f"the wrapper around {name} must return decisions by task, not {type(decided).__name__}")
    return complete_decisions(name, tasks, decided)


def apply_context(context: Context, batch: Batch, decisions: Decisions) -> Decisions:
    """Call a context with the decisions so far. Return the decisions of the context: none, or one on each task."""
    name = f"context {name_of(context)}"
    try:
        with batch.running(name):
            returned = context(batch, decisions)
        if returned is None:
            return {}
        decided = {task: decision_of(outcome) for task, outcome in returned.items()}
    except Exception as error:  # noqa: BLE001 -- any error fails these tasks
        return dict.fromkeys(batch.tasks, decision_on(error))
    return complete_decisions(name, batch.tasks, decided)


def apply_rewrites(batch: Batch, rewrites: Sequence[Rewrite]) -> Decisions:
    """Sort follow-ups and releases in the order of the batch, and rewrite the follow-ups.

    Return FAILURE for each task whose follow-up cannot be rewritten or pushed.
    """
    places = {task: place for place, task in enumerate(batch.tasks)}
    batch.follow_ups.sort(key=lambda follow_up: places[follow_up.task])  # threads add them in any order
    batch.releases.sort(key=lambda release: places[release.task])
    failed: dict[Task, Decision] = {}
    for place, follow_up in enumerate(batch.follow_ups):
        tasks = follow_up.tasks
        try:
            for rewrite in rewrites:
                tasks = tuple(rewrite(follow_up.task, new) for new in tasks)
            for chunk in split_into_chunks(follow_up.topic, tasks):
                chunk.columns()  # raises an error for a task that cannot be pushed
        except Exception as error:  # noqa: BLE001 -- any error fails this task
            failed[follow_up.task] = decision_on(error)
        batch.follow_ups[place] = replace(follow_up, tasks=tasks)
    return failed


def _call_whole(step: Step, tasks: Sequence[Task], batch: Batch, threads: CompositeThreads) -> dict[Task, Decision]:
    return decisions_of(_result_of(step.function(tasks, batch=batch), batch, threads), tasks)


def _call_each(step: Step, tasks: Sequence[Task], batch: Batch, threads: CompositeThreads) -> dict[Task, Decision]:
    if step.is_coroutine:
        return threads.run_awaitable(_await_each(step, tasks, batch), batch)
    decided: dict[Task, Decision] = {}

    def decide(task: Task) -> None:
        if batch.cancelled.is_set():
            return
        try:
            decided[task] = decision_of(_result_of(step.function(task, batch=batch), batch, threads))
        except BaseException as error:  # noqa: BLE001 -- also SystemExit: it fails this task only
            decided[task] = decision_on(error)

    if step.mode is StepMode.SEQUENTIAL or len(tasks) == 1:
        for task in tasks:
            decide(task)
    else:
        threads.each(decide, tasks, lambda: batch.running(f"step {step.name}"))
    return decided


async def _await_each(step: Step, tasks: Sequence[Task], batch: Batch) -> dict[Task, Decision]:
    def decide(task: Task) -> Coroutine[Any, Any, Decision]:
        return decision_of_call(lambda: step.function(task, batch=batch))

    if step.mode is StepMode.SEQUENTIAL:
        return {task: await decide(task) for task in tasks}
    return dict(zip(tasks, await asyncio.gather(*map(decide, tasks)), strict=True))


def _result_of(value: Any, batch: Batch, threads: CompositeThreads) -> Any:
    """Wait for a Future or an awaitable, and return its result. Return any other value as it is."""
    if isinstance(value, Future):
        return batch.result_of(value, "a step")
    return threads.run_awaitable(value, batch) if inspect.isawaitable(value) else value
