"""Processing groups: the handlers that belong together, and which of them an event is for."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from airflow_provider_taskq.queue import InvalidArgument, Task, TaskQueue

Predicate = Callable[[Task], object]
Kind = Callable[[Task], object]
H = TypeVar("H", bound=Callable[..., Any])


def type_in_payload(task: Task) -> object:
    """The kind of an event, unless a group says otherwise: the member `type` of a payload that is an object."""
    return task.payload.get("type") if isinstance(task.payload, dict) else None


@dataclass(frozen=True, slots=True)
class EventHandler:
    """A function for events that match; `in_transaction`: it takes the queue of the transaction beside the event."""

    matches: Predicate
    function: Callable[..., None]
    in_transaction: bool

    def __call__(self, event: Task, queue: TaskQueue | None) -> None:
        """Handles one event."""
        if self.in_transaction:
            self.function(event, queue)
        else:
            self.function(event)


class ConsumerGroup:
    """A named set of handlers, which read a topic at their own speed.

        books = Group("books")

        @books.on("book-added")
        def added(event: Task, queue: TaskQueue) -> None: ...

    A handler takes the event, and the queue of the transaction that stores progress if it wishes to.
    """

    def __init__(self, name: str, kind: Kind = type_in_payload) -> None:
        self.name = name
        self.kind = kind
        self.handlers: list[EventHandler] = []

    def on(self, *which: str | Predicate) -> Callable[[H], H]:
        """Makes a function a handler of events of these kinds, or that one of these predicates is true for.

        Without any it handles all events. The handlers of one event are called in the order in which they were made.
        """
        matches = _any_of([self._of_kind(each) if isinstance(each, str) else each for each in which])

        def made(function: H) -> H:
            self.handlers.append(EventHandler(matches, function, _takes_queue(function)))
            return function

        return made

    def handlers_of(self, event: Task) -> list[EventHandler]:
        """The handlers that an event is for; none where the group has nothing to do with it."""
        return [handler for handler in self.handlers if handler.matches(event)]

    def _of_kind(self, kind: str) -> Predicate:
        return lambda event: self.kind(event) == kind


def _any_of(predicates: Iterable[Predicate]) -> Predicate:
    """Whether any of them is true; of none, always."""
    given = tuple(predicates)
    return lambda event: not given or any(matches(event) for matches in given)


def _takes_queue(function: Callable[..., Any]) -> bool:
    """Whether a handler has a second parameter; refuses one that cannot be called with one or two."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # builtins and the like
        return False
    for count in (2, 1):
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return count == 2 and _wants_two(signature)
    raise InvalidArgument(f"handler {function!r:.100}: it takes the event, or the event and the queue")


def _wants_two(signature: inspect.Signature) -> bool:
    """Whether the second parameter is meant for the queue: it is there for everybody, without a default."""
    places = [
        each
        for each in signature.parameters.values()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    return len(places) >= 2 and places[1].default is inspect.Parameter.empty
