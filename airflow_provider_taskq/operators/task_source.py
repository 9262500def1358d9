"""The tasks that an operator or notifier pushes, in a form that hides their payloads from Airflow."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import XComArg, determine_kwargs

from airflow_provider_taskq.queue import InvalidTask, NewTask

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import Context

_SHOWN_IDENTIFIERS = 10


class TaskSource:
    """The argument `tasks` of an operator: an iterable, an XComArg, or a function that returns an iterable.

    Airflow stores template fields in the serialized DAG and as rendered fields, by `serialize()` or `str()`. Here both
    show only the number of tasks and the first identifiers.

    Raises TypeError for an iterator.
    """

    def __init__(self, source: Any) -> None:
        if isinstance(source, Iterator):
            raise TypeError("tasks is an iterator, which a second try would find empty: pass the generator function")
        self.source = source

    def serialize(self) -> Any:
        """Return the description of the tasks that Airflow stores and shows."""
        if isinstance(self.source, XComArg):
            return str(self.source)
        if callable(self.source):
            return f"<tasks from {getattr(self.source, '__qualname__', type(self.source).__qualname__)}>"
        if isinstance(self.source, list | tuple | set | frozenset):
            shown = [_identifier(task) for task in islice(self.source, _SHOWN_IDENTIFIERS)]
            return {"count": len(self.source), "identifiers": shown}
        return f"<tasks in a {type(self.source).__name__}>"

    def __str__(self) -> str:
        return json.dumps(self.serialize())

    __repr__ = __str__

    def map(self, render: Callable[[Any], Any]) -> "TaskSource":
        """Return the source with rendered templates. The tasks of a function are not templates."""
        if callable(self.source) and not isinstance(self.source, XComArg):
            return self
        return TaskSource(render(self.source))

    def tasks(self, context: Mapping[str, Any]) -> Iterator[Any]:
        """Yield the tasks for `TaskQueue.push`. A function gets those values of the context that it has as parameters.

        Raises InvalidTask if there is no list of tasks.
        """
        tasks = self.source(**determine_kwargs(self.source, (), context)) if callable(self.source) else self.source
        if isinstance(tasks, str | bytes | Mapping | NewTask) or not isinstance(tasks, Iterable):
            raise InvalidTask(
                f"tasks must be a list of tasks, not one {type(tasks).__name__}; pass another task's result as "
                "`upstream.output`, or set render_template_as_native_obj=True on the DAG"
            )
        yield from tasks


class TaskSourceTemplater:
    """Mixin that renders inside a TaskSource, so that a template error logs identifiers and no payloads."""

    def render_template(
        self,
        content: Any,
        context: "Context",
        jinja_env: "jinja2.Environment | None" = None,
        seen_oids: set[int] | None = None,
    ) -> Any:
        """Render a field; the templates inside a TaskSource are rendered one by one."""
        if isinstance(content, TaskSource):
            return content.map(lambda source: self.render_template(source, context, jinja_env, seen_oids))
        return super().render_template(content, context, jinja_env, seen_oids)  # type: ignore[misc]  # of Templater


def _identifier(task: Any) -> str:
    found = task.get("identifier") if isinstance(task, Mapping) else getattr(task, "identifier", task)
    return found if isinstance(found, str) else "?"
