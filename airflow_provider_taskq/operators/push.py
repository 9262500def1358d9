"""Pushes tasks from a DAG."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseOperator, XComArg

from airflow_provider_taskq.operators.task_source import TaskSource
from airflow_provider_taskq.queue import Insertion, NewTask

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import Context

    from airflow_provider_taskq.hooks.taskq import TaskQHook


class TaskQPushOperator(BaseOperator):
    """Pushes tasks to a topic, in one transaction: all of them, or in a try that fails, none.

    `tasks` is a list of identifiers, of dicts with the fields of `NewTask`, or of `NewTask` objects; or the output of
    another task (`upstream.output`); or a function, which may be a generator and may take names of the context
    (`def tasks(ds): ...`). Tasks are streamed, so a generator's million needs little memory. Identifiers and dicts in a
    list are templates; what a function or another task gave is not.

    Payloads stay out of Airflow: its metadata, rendered fields and logs see counts and identifiers. What a DAG
    passes by XCom or writes into `expand()` is stored by Airflow itself: for private payloads, give a function.

    A worker that dies between the commit and its report is run again by Airflow and then pushes again; where that
    matters, `insertion="SUPERSEDE"` makes the earlier copies that still wait redundant.

    Returns `{"topic", "pushed", "first", "last"}`: the number of tasks, and the lowest and highest sequence.

    :param topic: the topic's name (templated).
    :param tasks: what to push (templated, see above).
    :param insertion: what becomes of older tasks of the same identifiers.
    :param create_topic: whether to create the topic, with the default policy, if there is none.
    :param taskq_conn_id: the Airflow connection (templated).
    """

    template_fields: Sequence[str] = ("topic", "tasks", "taskq_conn_id")
    ui_color = "#d9ead3"

    def __init__(
        self,
        *,
        topic: str,
        tasks: Iterable[str | NewTask | Mapping[str, Any]] | Callable[..., Iterable[Any]] | XComArg,
        insertion: Insertion | str = Insertion.APPEND,
        create_topic: bool = False,
        taskq_conn_id: str = "taskq_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.tasks = TaskSource(tasks)
        self.insertion = Insertion(insertion)
        self.create_topic = create_topic
        self.taskq_conn_id = taskq_conn_id

    @cached_property
    def hook(self) -> "TaskQHook":
        """The hook; imported here, as what it builds on takes seconds that a DAG processor need not spend."""
        from airflow_provider_taskq.hooks.taskq import TaskQHook

        return TaskQHook(taskq_conn_id=self.taskq_conn_id)

    def execute(self, context: "Context") -> dict[str, Any]:
        """Pushes, and says how many."""
        with self.hook.transaction() as queue:
            if self.create_topic:
                queue.create_topic(self.topic)
            pushed = queue.push_stream(self.topic, self.tasks.tasks(context), self.insertion)
        self.log.info("Pushed %d tasks to topic %s.", pushed.count, self.topic)
        return {"topic": self.topic, "pushed": pushed.count, "first": pushed.first, "last": pushed.last}

    def render_template(
        self,
        content: Any,
        context: "Context",
        jinja_env: "jinja2.Environment | None" = None,
        seen_oids: set[int] | None = None,
    ) -> Any:
        """Renders inside a TaskSource, so that an error in a template logs its identifiers and not its payloads."""
        if isinstance(content, TaskSource):
            return content.map(lambda given: self.render_template(given, context, jinja_env, seen_oids))
        return super().render_template(content, context, jinja_env, seen_oids)

    def _set_xcomargs_dependencies(self) -> None:
        """Makes tasks whose output stands in `tasks` upstream of this one, as Airflow does for plain fields."""
        super()._set_xcomargs_dependencies()
        XComArg.apply_upstream_relationship(self, self.tasks.given)
