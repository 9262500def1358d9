"""A DAG whose task instances push, wait for and hold tasks of the queue; it is paused, and never runs."""

from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_taskq.operators import TaskQProcessOperator, TaskQPushOperator
from airflow_provider_taskq.sensors import TaskQSensor, TaskQStateSensor

PAGE: dict[str, Any] = {"taskq_conn_id": "taskq_page"}

with DAG("shop", schedule=None, is_paused_upon_creation=True):
    push = TaskQPushOperator(task_id="push", topic="orders", tasks=["order-1", "order-2", "order-3"], **PAGE)
    claim = TaskQSensor(task_id="claim", topic="orders", claim=2, **PAGE)
    settled = TaskQStateSensor(task_id="settled", topic="orders", identifiers=["order-1", "order-2"], **PAGE)
    drain = TaskQProcessOperator(task_id="drain", topic="work", python_callable=print, taskq_conn_id="taskq_acts")
    gate = TaskQSensor(task_id="gate", topic="work", claim=20, taskq_conn_id="taskq_acts")

    @task
    def other() -> None:
        """Has nothing to do with the queue."""

    push >> claim >> settled >> drain >> gate >> other()
