"""What a composite is made of: steps that know what they come after. Nothing here runs, and nothing changes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeAlias

from airflow_provider_taskq.queue import Decision, InvalidArgument, Result, Task
from airflow_provider_taskq.worker.batches import Batch, Rewrite
from airflow_provider_taskq.worker.handlers import takes_batch

StepFunction: TypeAlias = Callable[..., Any]
After: TypeAlias = str | StepFunction | Iterable[str | StepFunction]
Decisions: TypeAlias = Mapping[Task, Decision]
# Called in the place of a step: (step, tasks, proceed). It calls `proceed`, and returns its decisions or others.
Around: TypeAlias = Callable[[str, Sequence[Task], Callable[[], Decisions]], Decisions]
# Called after the last step.
Context: TypeAlias = Callable[[Batch, Decisions], Mapping[Task, Decision | Result] | None]


class StepMode(StrEnum):
    """How a step goes through the tasks of a batch: several at once, or one after another in the batch's order."""

    PARALLEL = "PARALLEL"
    SEQUENTIAL = "SEQUENTIAL"


@dataclass(frozen=True, slots=True)
class Step:
    """A named function of one task, or of all tasks at once (`whole`), and the steps that it comes after.

    `wants_batch` tells that its second argument is the batch.
    """

    name: str
    function: StepFunction
    after: tuple[str, ...] = ()
    mode: StepMode = StepMode.PARALLEL
    whole: bool = False
    wants_batch: bool = False

    def call(self, given: object, batch: Batch) -> Any:
        """Calls the function."""
        return self.function(given, batch) if self.wants_batch else self.function(given)


@dataclass(frozen=True, slots=True)
class Definition:
    """A composite's steps in the order in which they were added, and what belongs to all of them.

    A step can only come after steps that are there already, so there are no cycles.
    """

    name: str
    steps: tuple[Step, ...] = ()
    contexts: tuple[Context, ...] = ()
    around: tuple[Around, ...] = ()
    rewrites: tuple[Rewrite, ...] = ()

    def with_step(
        self, function: StepFunction, name: str | None, after: After, mode: StepMode, whole: bool
    ) -> "Definition":
        """This with one step more; InvalidArgument where its name is taken, or a step that it comes after unknown."""
        if not callable(function):
            raise InvalidArgument(f"composite {self.name!r}: a step is a function, not a {type(function).__name__}")
        step = Step(
            name or _name_of(function), function, self._names(after), StepMode(mode), whole, takes_batch(function)
        )
        if any(each.name == step.name for each in self.steps):
            raise InvalidArgument(f"composite {self.name!r} has a step {step.name!r} already")
        return replace(self, steps=(*self.steps, step))

    def with_context(self, context: Context) -> "Definition":
        """This with one context more."""
        return replace(self, contexts=(*self.contexts, context))

    def with_around(self, around: Around) -> "Definition":
        """This with something more around each step."""
        return replace(self, around=(*self.around, around))

    def with_rewrite(self, rewrite: Rewrite) -> "Definition":
        """This with one rewrite more."""
        return replace(self, rewrites=(*self.rewrites, rewrite))

    def _names(self, after: After) -> tuple[str, ...]:
        """The names of the steps that are meant, each once."""
        given = [after] if isinstance(after, str) or callable(after) else list(after)
        return tuple(dict.fromkeys(self._name(each) for each in given))

    def _name(self, meant: str | StepFunction) -> str:
        """The name of the step that is meant by its name or its function."""
        found = [step.name for step in self.steps if meant in (step.name, step.function)]
        if len(found) == 1:
            return found[0]
        name = meant if isinstance(meant, str) else _name_of(meant)
        if found:
            raise InvalidArgument(f"composite {self.name!r}: {name!r} is the function of several steps; name one")
        known = ", ".join(step.name for step in self.steps) or "none"
        raise InvalidArgument(f"composite {self.name!r} has no step {name!r} to come after; there are: {known}")


def _name_of(function: StepFunction) -> str:
    """What a function is called."""
    return str(getattr(function, "__name__", None) or type(function).__name__)
