"""Consumer groups: the handlers of a group, the events that they match, and the exceptions for handlers."""

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
    """A handler raises this error if no retry can help.

    The error ends the loop of the partition, with progress before this event.
    """


class Interrupted(Exception):
    """A handler raises this error to end the loop of its partition without an error.

    The progress stays before this event.
    """


def type_in_payload(task: Task) -> object:
    """Return the default kind of an event: the member `type` of its payload, or None if there is none."""
    return task.payload.get("type") if isinstance(task.payload, dict) else None


@dataclass(frozen=True, slots=True)
class EventHandler:
    """A function for matching events.

    `in_transaction` is True if the function also takes the queue of the transaction.
    """

    matches: Predicate
    function: Callable[..., None]
    in_transaction: bool

    def __call__(self, event: Task, queue: TaskQueue | None) -> None:
        """Call the function with the event, and with the queue if `in_transaction`."""
        if self.in_transaction:
            self.function(event, queue)
        else:
            self.function(event)


class ConsumerGroup:
    """A named set of handlers. A group has its own progress in each topic.

        books = ConsumerGroup("books")

        @books.on("book-added")
        def added(event: Task, queue: TaskQueue) -> None: ...

    A handler takes the event, or the event and the queue of the transaction that stores progress.

    :param kind: returns the kind of an event, which `on` compares.
    """

    def __init__(self, name: str, kind: Kind = type_in_payload) -> None:
        self.name = name
        self.kind = kind
        self.handlers: list[EventHandler] = []

    def on(self, *which: str | Predicate) -> Callable[[H], H]:
        """Add a handler, as a decorator, for events of these kinds, or for which one of these predicates is true.

        Without arguments the handler gets all events. The handlers of one event run in the order of their definition.
        Raises InvalidArgument for a handler that takes neither one argument nor two.
        """

        def matches(event: Task) -> bool:
            return not which or any(
                self.kind(event) == each if isinstance(each, str) else each(event) for each in which
            )

        def add_handler(function: H) -> H:
            self.handlers.append(EventHandler(matches, function, _takes_queue(function)))
            return function

        return add_handler

    def handlers_of(self, event: Task) -> list[EventHandler]:
        """Return the handlers that match an event."""
        return [handler for handler in self.handlers if handler.matches(event)]


def _takes_queue(function: Callable[..., Any]) -> bool:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # many builtins have no signature
        return False
    takes_queue = requires_two_arguments(function)
    try:
        signature.bind(*range(1 + takes_queue))
    except TypeError:
        raise InvalidArgument(f"handler {function!r:.100} must take the event, or the event and the queue") from None
    return takes_queue
