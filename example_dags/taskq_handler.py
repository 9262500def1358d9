"""Push tasks, then handle each with a Python function, without Spark: copy, and change the names."""

from airflow.sdk import DAG, task

from airflow_provider_taskq.operators import TaskQPushOperator
from airflow_provider_taskq.queue import Result, Task
from airflow_provider_taskq.worker import Batch

with DAG("taskq_handler", schedule=None, tags=["taskq"]):
    push = TaskQPushOperator(task_id="push", topic="parcels", tasks=["4711", "4712", "4713-"], create_topic=True)

    @task.taskq(topic="parcels", size=10, workers=2)
    def deliver(parcel: Task, batch: Batch) -> Result:
        """Handle one parcel. An exception would be a failure of this parcel only."""
        if not parcel.identifier.isdigit():
            return Result.FILTER
        batch.push(parcel, "parcels", [f"receipt of {parcel.identifier}"])  # commits with this parcel's SUCCESS
        return Result.SUCCESS

    push >> deliver()  # type: ignore[call-arg,misc]  # the queue passes the task and the batch
