"""DAGs that work on topics in the ways that the page names: mapped, decorated, templated, and started by a topic."""

from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_taskq.operators import TaskQPushOperator
from airflow_provider_taskq.queue import Task
from airflow_provider_taskq.triggers import TaskQEventTrigger

PAGE: dict[str, Any] = {"taskq_conn_id": "taskq_page"}

with DAG("partner", schedule=None, is_paused_upon_creation=True):
    TaskQPushOperator.partial(task_id="push_to_each", tasks=["a"], **PAGE).expand(topic=["orders", "payments"])
    TaskQPushOperator(task_id="templated", topic="{{ params.topic }}", tasks=["a"], params={"topic": "orders"}, **PAGE)
    TaskQPushOperator(task_id="elsewhere", topic="orders", tasks=["a"], taskq_conn_id="taskq_acts")

    @task.taskq(topic="orders", **PAGE)
    def deliver(order: Task) -> None:
        """Never called."""

    deliver()  # type: ignore[call-arg,misc]  # the queue gives the task

trigger = TaskQEventTrigger(topic="orders", **PAGE)
watched = Asset("orders-that-wait", watchers=[AssetWatcher(name="orders", trigger=trigger)])
with DAG("woken", schedule=[watched], is_paused_upon_creation=True):
    pass
