"""Consumer groups: the handlers of a group, the events that they match, and the exceptions for handlers."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from airflow_provider_taskq.queue import Task
from airflow_provider_taskq.worker.handlers import HandlerFunction

Predicate = Callable[[Task], object]
Kind = Callable[[Task], object]
H = TypeVar("H", bound=Callable[..., Any])
SUPPLIED = ("batch", "queue")  # the values that a handler may get, by the names of its parameters


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
    """A function for matching events."""

    matches: Predicate
    function: HandlerFunction


class ConsumerGroup:
    """A named set of handlers. A group has its own progress in each topic.

        books = ConsumerGroup("books")

        @books.on("book-added")
        def added(event: Task, queue: TaskQueue) -> None: ...

    A handler takes the event. If it has a parameter `queue`, it gets the queue of the transaction that stores progress.
    A parameter `batch` gets an object with `owner`: the consumer, and the fence of its lease on the partition.

    :param kind: returns the kind of an event, which `on` compares.
    """

    def __init__(self, name: str, kind: Kind = type_in_payload) -> None:
        self.name = name
        self.kind = kind
        self.handlers: list[EventHandler] = []

    def on(self, *which: str | Predicate) -> Callable[[H], H]:
        """Add a handler, as a decorator, for events of these kinds, or for which one of these predicates is true.

        Without arguments the handler gets all events. The handlers of one event run in the order of their definition.
        Raises InvalidArgument for a handler that has another parameter without a default.
        """

        def matches(event: Task) -> bool:
            return not which or any(
                self.kind(event) == each if isinstance(each, str) else each(event) for each in which
            )

        def add_handler(function: H) -> H:
            self.handlers.append(EventHandler(matches, self._handler_function(function, SUPPLIED)))
            return function

        return add_handler

    def handlers_with(self, supplied: Collection[str]) -> list[EventHandler]:
        """Return the handlers for a consumer that supplies no other values than these, by name.

        Raises InvalidArgument if a handler has a parameter without a default for another value.
        """
        return [
            replace(each, function=self._handler_function(each.function.function, supplied)) for each in self.handlers
        ]

    def _handler_function(self, function: Callable[..., Any], supplied: Collection[str]) -> HandlerFunction:
        return HandlerFunction.of(function, f"the consumer of group {self.name!r}", supplied, "the event")
