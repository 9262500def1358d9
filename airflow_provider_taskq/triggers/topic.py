"""Waits in the triggerer until a topic has tasks."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.providers.common.compat.sdk import AirflowException
from airflow.triggers.base import BaseTrigger, TaskSuccessEvent, TriggerEvent

from airflow_provider_taskq.queue import TaskQueueError
from airflow_provider_taskq.triggers.watcher import Wait, watcher


class TaskQTrigger(BaseTrigger):
    """Fires once, when a topic has so many tasks to be polled. It only looks: what it sees, others may take.

    All triggers of a process that use one Airflow connection share one database connection and one query a look.
    A lost connection is made anew; a topic that is not known, or a schema that is not there, ends the wait at once.

    :param topic: the topic's name.
    :param min_tasks: how many tasks are enough.
    :param condition: under which condition the tasks are counted.
    :param taskq_conn_id: the Airflow connection.
    :param poll_interval: seconds between two looks.
    :param ends_task: whether to end the deferred task with success rather than resume it in a worker.
    :param first_look: seconds to wait before the first look.
    """

    def __init__(
        self,
        *,
        topic: str,
        min_tasks: int = 1,
        condition: str = "NONE",
        taskq_conn_id: str = "taskq_default",
        poll_interval: float = 1.0,
        ends_task: bool = False,
        first_look: float = 0.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.topic = topic
        self.min_tasks = min_tasks
        self.condition = condition
        self.taskq_conn_id = taskq_conn_id
        self.poll_interval = poll_interval
        self.ends_task = ends_task
        self.first_look = first_look

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and its arguments: names and numbers only."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            "topic": self.topic,
            "min_tasks": self.min_tasks,
            "condition": self.condition,
            "taskq_conn_id": self.taskq_conn_id,
            "poll_interval": self.poll_interval,
            "ends_task": self.ends_task,
            "first_look": self.first_look,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Waits, then fires once: a success, a number, or why it will never be."""
        await asyncio.sleep(self.first_look)
        wait = Wait(self.topic, self.min_tasks, self.poll_interval, self.condition)
        try:
            ready = await watcher(self.taskq_conn_id).ready(wait)
        except (AirflowException, TaskQueueError) as error:
            yield _event(status="error", message=str(error))
            return
        if self.ends_task:
            yield TaskSuccessEvent()
        else:
            yield _event(status="ready", topic=self.topic, ready=ready)


def _event(**facts: Any) -> TriggerEvent:
    """What `execute_complete` is told."""
    return TriggerEvent(facts)  # type: ignore[no-untyped-call]
