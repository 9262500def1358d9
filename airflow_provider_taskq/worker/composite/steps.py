"""The definition of a composite: its steps and contexts."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from airflow_provider_taskq.queue import Decision, InvalidArgument, Result, Task
from airflow_provider_taskq.worker.batches import Batch
from airflow_provider_taskq.worker.handlers import Decisions, HandlerFunction

StepFunction: TypeAlias = Callable[..., Any]
After: TypeAlias = str | StepFunction | Iterable[str | StepFunction]
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
    """The steps of a composite in the order in which they were added, and its contexts.

    A step can only run after steps that were added before it, so there are no cycles.
    """

    name: str
    steps: tuple[Step, ...] = ()
    contexts: tuple[Context, ...] = ()

    def new_step(self, function: StepFunction, name: str | None, after: After, mode: StepMode, whole: bool) -> Step:
        """Return a new step.

        Raises InvalidArgument if the name of the step is taken, a step of `after` is unknown, or the function has a
        parameter without a default that is neither its first one nor `batch`.
        """
        runner, first = f"composite {self.name!r}", "the tasks" if whole else "the task"
        called = HandlerFunction.of(function, runner, ("batch",), first)
        step = Step(name or _name_of(function), called, self._names(after), StepMode(mode), whole)
        if any(each.name == step.name for each in self.steps):
            raise InvalidArgument(f"composite {self.name!r} has a step {step.name!r} already")
        return step

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
