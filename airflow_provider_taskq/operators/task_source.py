"""What an operator is to push, kept so that Airflow can render and store it without ever seeing a payload."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import XComArg, determine_kwargs

from airflow_provider_taskq.queue import InvalidTask, NewTask

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import Context

_SHOWN = 10


class TaskSource:
    """Tasks as a DAG's author gives them: an iterable, an XComArg, or a function that returns one.

    Airflow stores an operator's template fields twice, in the serialized DAG and as rendered fields: as JSON where
    the value has `serialize()`, else by `str()`. Both show here how many tasks there are and the first identifiers.
    """

    def __init__(self, given: Any) -> None:
        if isinstance(given, Iterator):
            raise TypeError(
                "tasks is an iterator, which one try would use up; give the function that makes it, uncalled"
            )
        self.given = given

    def serialize(self) -> Any:
        """What the web interface and the metadata database get to see."""
        if isinstance(self.given, XComArg):
            return str(self.given)
        if callable(self.given):
            return f"<tasks from {getattr(self.given, '__qualname__', type(self.given).__qualname__)}>"
        if isinstance(self.given, list | tuple | set | frozenset):
            shown = [_identifier(task) for task in islice(self.given, _SHOWN)]
            return {"count": len(self.given), "identifiers": shown}
        return f"<tasks in a {type(self.given).__name__}>"

    def __str__(self) -> str:
        return json.dumps(self.serialize())

    __repr__ = __str__

    def map(self, change: Callable[[Any], Any]) -> "TaskSource":
        """The same with what was given changed; a function is left as it is, its tasks are not templates."""
        if callable(self.given) and not isinstance(self.given, XComArg):
            return self
        return TaskSource(change(self.given))

    def tasks(self, context: Mapping[str, Any]) -> Iterator[Any]:
        """The tasks as `TaskQueue.push` takes them; a function gets those names of the context that it takes."""
        given = self.given(**determine_kwargs(self.given, (), context)) if callable(self.given) else self.given
        if isinstance(given, str | bytes | Mapping | NewTask) or not isinstance(given, Iterable):
            raise InvalidTask(
                f"tasks must be a list of tasks, not one {type(given).__name__}; pass another task's result as "
                "`upstream.output`, or set render_template_as_native_obj=True on the DAG"
            )
        yield from given


class RendersTasks:
    """Renders inside a TaskSource, so that an error in a template logs its identifiers and not its payloads."""

    def render_template(
        self,
        content: Any,
        context: "Context",
        jinja_env: "jinja2.Environment | None" = None,
        seen_oids: set[int] | None = None,
    ) -> Any:
        """What Airflow renders, with the templates inside a TaskSource rendered one by one."""
        if isinstance(content, TaskSource):
            return content.map(lambda given: self.render_template(given, context, jinja_env, seen_oids))
        return super().render_template(content, context, jinja_env, seen_oids)  # type: ignore[misc]  # of Templater


def _identifier(task: Any) -> str:
    """The identifier of a task in any form; nothing else of it."""
    found = task.get("identifier") if isinstance(task, Mapping) else getattr(task, "identifier", task)
    return found if isinstance(found, str) else "?"
