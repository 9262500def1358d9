"""Pushes a task when a DAG or a task of it succeeds or fails."""

import asyncio
from collections.abc import Generator, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.notifier import BaseNotifier

from airflow_provider_taskq.operators.task_source import RendersTasks, TaskSource
from airflow_provider_taskq.queue import Insertion, Json

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import Context


class TaskQNotifier(RendersTasks, BaseNotifier):
    """Pushes one task, in a callback of a DAG or of a task.

        on_failure_callback=TaskQNotifier(
            topic="incidents",
            identifier="{{ dag.dag_id }}/{{ run_id }}",
            payload={"reason": "{{ reason | default('') }}"},
        )

    The identifier, reference and payload are templates over the callback's context, and stay out of Airflow's logs.
    Airflow makes a callback at least once: where a second push matters, `insertion="SUPERSEDE"` makes the first one, if
    it still waits, redundant. Callbacks of DAGs run in the DAG processor, which needs the Airflow connection, too.

    :param topic: the topic's name (templated).
    :param identifier: what the task is about (templated).
    :param payload: its payload (templated).
    :param reference: its reference (templated).
    :param priority: its priority.
    :param delay: seconds until it is due.
    :param insertion: what becomes of older tasks of the same identifier.
    :param create_topic: whether to create the topic, with the default policy, if there is none.
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
        delay: float | None = None,
        insertion: Insertion | str = Insertion.APPEND,
        create_topic: bool = False,
        taskq_conn_id: str = "taskq_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        task = {"identifier": identifier, "payload": payload, "reference": reference, "priority": priority}
        self.tasks = TaskSource([{**task, "delay": delay}])
        self.insertion = Insertion(insertion)
        self.create_topic = create_topic
        self.taskq_conn_id = taskq_conn_id

    def notify(self, context: "Context") -> None:
        """Pushes, in a transaction of its own."""
        from airflow_provider_taskq.hooks.taskq import TaskQHook

        with TaskQHook(taskq_conn_id=self.taskq_conn_id).transaction() as queue:
            if self.create_topic:
                queue.create_topic(self.topic)
            queue.push_stream(self.topic, self.tasks.tasks(context), self.insertion)
        self.log.info("Pushed %s to topic %s.", self.tasks.serialize()["identifiers"][0], self.topic)

    async def async_notify(self, context: "Context") -> None:
        """Pushes without blocking the event loop, which is the triggerer's."""
        await asyncio.to_thread(self.notify, context)

    def render_template_fields(self, context: "Context", jinja_env: "jinja2.Environment | None" = None) -> None:
        """Renders as Airflow does, also in `dag.test()`, which gives callbacks of DAGs the stored DAG."""
        if jinja_env is None and not hasattr(context.get("dag"), "get_template_env"):
            jinja_env = self.get_template_env()
        super().render_template_fields(context, jinja_env)

    # Airflow renders a notifier in place. One that many tasks share, by default_args, would go on saying what it said
    # the first time, so each call is made by a copy.

    def __call__(self, *args: Any) -> None:
        """Renders and pushes."""
        BaseNotifier.__call__(copy(self), *args)

    def __await__(self) -> Generator[Any, Any, Any]:
        """Renders and pushes, where callbacks are awaited."""
        return BaseNotifier.__await__(copy(self))
