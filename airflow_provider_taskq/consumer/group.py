"""Consumer groups: the handlers of a group, the events that they match, and the errors that they may raise."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from airflow_provider_taskq.queue import InvalidArgument, Task, TaskQueue
from airflow_provider_taskq.worker.handlers import requires_two_arguments

Predicate = Callable[[Task], object]
Kind = Callable[[Task], object]
H = TypeVar("H", bound=Callable[..., Any])


class NonTransient(Exception):
    """Raised by a handler: no retry can help. The loop of the partition ends, its progress stays before this event."""


class Interrupted(Exception):
    """Raised by a handler that has to stop: the loop of the partition ends quietly, without progress."""


class HandlerFailed(Exception):
    """A handler raised the cause of this error. It distinguishes errors of handlers from those of the queue."""


def type_in_payload(task: Task) -> object:
    """The default kind of an event: the member `type` of a payload that is an object."""
    return task.payload.get("type") if isinstance(task.payload, dict) else None


@dataclass(frozen=True, slots=True)
class EventHandler:
    """A function for matching events. `in_transaction`: it also takes the queue of the transaction."""

    matches: Predicate
    function: Callable[..., None]
    in_transaction: bool

    def __call__(self, event: Task, queue: TaskQueue | None) -> None:
        """Calls the function."""
        if self.in_transaction:
            self.function(event, queue)
        else:
            self.function(event)


class ConsumerGroup:
    """A named set of handlers with a progress of its own in each topic.

        books = ConsumerGroup("books")

        @books.on("book-added")
        def added(event: Task, queue: TaskQueue) -> None: ...

    A handler takes the event, or the event and the queue of the transaction that stores progress.
    """

    def __init__(self, name: str, kind: Kind = type_in_payload) -> None:
        self.name = name
        self.kind = kind
        self.handlers: list[EventHandler] = []

    def on(self, *which: str | Predicate) -> Callable[[H], H]:
        """Adds a handler, as a decorator, of the events of these kinds, or for which one of these predicates is true.

        Without arguments it handles all events. The handlers of one event are called in the order of their definition.
        """
        predicates = [self._of_kind(each) if isinstance(each, str) else each for each in which]

        def matches(event: Task) -> bool:
            return not predicates or any(predicate(event) for predicate in predicates)

        def add_handler(function: H) -> H:
            self.handlers.append(EventHandler(matches, function, _takes_queue(function)))
            return function

        return add_handler

    def handlers_of(self, event: Task) -> list[EventHandler]:
        """The handlers that match an event."""
        return [handler for handler in self.handlers if handler.matches(event)]

    def _of_kind(self, kind: str) -> Predicate:
        return lambda event: self.kind(event) == kind


def _takes_queue(function: Callable[..., Any]) -> bool:
    """Whether a handler takes the queue. InvalidArgument if it takes neither one argument nor two."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # such as builtins
        return False
    for count in (2, 1):
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return count == 2 and requires_two_arguments(function)
    raise InvalidArgument(f"handler {function!r:.100} must take the event, or the event and the queue")
