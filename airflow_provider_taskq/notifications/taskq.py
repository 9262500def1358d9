"""The notifier that pushes a task in a callback of a DAG or of a task."""

import asyncio
from collections.abc import Generator, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.notifier import BaseNotifier

from airflow_provider_taskq import hooks
from airflow_provider_taskq.operators.task_source import TaskSource, TaskSourceTemplater
from airflow_provider_taskq.queue import Insertion, Json
from airflow_provider_taskq.queue.arguments import DurationLike
from airflow_provider_taskq.queue.encoding import JsonDefault

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import Context


class TaskQNotifier(TaskSourceTemplater, BaseNotifier):
    """Pushes one task, in a callback of a DAG or of a task.

        on_failure_callback=TaskQNotifier(
            topic="incidents",
            identifier="{{ dag.dag_id }}/{{ run_id }}",
            payload={"reason": "{{ reason | default('') }}"},
        )

    The identifier, reference and payload are templates over the callback's context. They stay out of Airflow's logs.
    Airflow runs a callback at least once. With `insertion="SUPERSEDE"` a second push makes the waiting task of the
    first one redundant. Callbacks of DAGs run in the DAG processor, which needs the Airflow connection too.

    :param topic: the topic's name (templated).
    :param identifier: the task's identifier (templated).
    :param payload: the task's payload (templated).
    :param reference: the task's reference (templated).
    :param priority: the task's priority.
    :param delay: how long after the push the task is due: a timedelta, seconds or text such as `5m`.
    :param insertion: how the push treats older tasks of the same identifier.
    :param create_topic: whether to create a missing topic with the default policy.
    :param json_default: converts an object in the payload that JSON does not have, such as a datetime, as that of
        `json.dumps`; for example `str`.
    :param taskq_conn_id: the Airflow connection (templated).
    """

    template_fields: Sequence[str] = ("topic", "tasks", "taskq_conn_id")

    def __init__(
        self,
        *,
        topic: str,
        identifier: str,
        payload: Json = None,
        reference: str | None = None,
        priority: int = 0,
        delay: DurationLike | None = None,
        insertion: Insertion | str = Insertion.APPEND,
        create_topic: bool = False,
        json_default: JsonDefault | None = None,
        taskq_conn_id: str = "taskq_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        task = {"identifier": identifier, "payload": payload, "reference": reference, "priority": priority}
        self.tasks = TaskSource([{**task, "delay": delay}])
        self.insertion = Insertion(insertion)
        self.create_topic = create_topic
        self.json_default = json_default
        self.taskq_conn_id = taskq_conn_id

    def notify(self, context: "Context") -> None:
        """Push the task in a transaction of its own."""
        with hooks.TaskQHook(taskq_conn_id=self.taskq_conn_id, json_default=self.json_default).transaction() as queue:
            if self.create_topic:
                queue.create_topic(self.topic)
            queue.push_stream(self.topic, self.tasks.tasks(context), self.insertion)
        self.log.info("Pushed task: topic=%s identifier=%s", self.topic, self.tasks.serialize()["identifiers"][0])

    async def async_notify(self, context: "Context") -> None:
        """Push the task without blocking the event loop of the triggerer."""
        await asyncio.to_thread(self.notify, context)

    def render_template_fields(self, context: "Context", jinja_env: "jinja2.Environment | None" = None) -> None:
        """Render the fields with the templates of the DAG."""
        # `dag.test()` passes a serialized DAG, which has no template environment.
        if jinja_env is None and not hasattr(context.get("dag"), "get_template_env"):
            jinja_env = self.get_template_env()
        super().render_template_fields(context, jinja_env)

    # Airflow renders a notifier in place. Tasks may share one notifier by default_args, and its second call would push
    # the rendered fields of the first call. So each call renders a copy.

    def __call__(self, *args: Any) -> None:
        """Push the task of a rendered copy, in a synchronous callback."""
        BaseNotifier.__call__(copy(self), *args)

    def __await__(self) -> Generator[Any, Any, Any]:
        return BaseNotifier.__await__(copy(self))
