"""A DAG whose task instances push, wait for and hold tasks of the queue; it is known to Airflow, and never runs."""

from airflow.sdk import DAG, task

from airflow_provider_taskq.operators import TaskQProcessOperator, TaskQPushOperator
from airflow_provider_taskq.sensors import TaskQSensor, TaskQStateSensor

with DAG("shop", schedule=None):
    push = TaskQPushOperator(task_id="push", topic="orders", tasks=["order-1", "order-2", "order-3"])
    claim = TaskQSensor(task_id="claim", topic="orders", claim=2)
    settled = TaskQStateSensor(task_id="settled", topic="orders", identifiers=["order-1", "order-2"])
    drain = TaskQProcessOperator(task_id="drain", topic="work", python_callable=print, taskq_conn_id="taskq_acts")
    gate = TaskQSensor(task_id="gate", topic="work", claim=20, taskq_conn_id="taskq_acts")

    @task
    def other() -> None:
        """Has nothing to do with the queue."""

    push >> claim >> settled >> drain >> gate >> other()
