"""The contract of the parameters of handlers: the task comes first, then what the runner supplies by name.

A runner calls handlers: a worker, a composite, a consumer, a drain of Spark. Each runner asks `HandlerFunction` which
of its values a function gets, so that the rule is the same everywhere.
"""

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any

from airflow_provider_taskq.queue import InvalidArgument
from airflow_provider_taskq.worker.batches import name_of

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


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
