"""DAGs that work on topics in the ways that the page names: mapped, decorated, templated, and started by a topic."""

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_taskq.operators import TaskQPushOperator
from airflow_provider_taskq.queue import Task
from airflow_provider_taskq.triggers import TaskQEventTrigger

with DAG("partner", schedule=None):
    TaskQPushOperator.partial(task_id="push_to_each", tasks=["a"]).expand(topic=["orders", "payments"])
    TaskQPushOperator(task_id="templated", topic="{{ params.topic }}", tasks=["a"], params={"topic": "orders"})
    TaskQPushOperator(task_id="elsewhere", topic="orders", tasks=["a"], taskq_conn_id="taskq_acts")

    @task.taskq(topic="orders")
    def deliver(order: Task) -> None:
        """Never called."""

    deliver()  # type: ignore[call-arg,misc]  # the queue gives the task

watched = Asset("orders-that-wait", watchers=[AssetWatcher(name="orders", trigger=TaskQEventTrigger(topic="orders"))])
with DAG("started", schedule=[watched]):
    pass
