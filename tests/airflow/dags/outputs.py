"""Each value that a task returns is an XCom of its own, so that `task.output["owner"]` resolves."""

from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_taskq.operators import TaskQCompleteOperator, TaskQPushOperator, TaskQReleaseOperator
from airflow_provider_taskq.queue import Task
from airflow_provider_taskq.sensors import TaskQSensor

with DAG("outputs", schedule=None, default_args={"owner": "data-team"}):

    @task
    def results(values: Any) -> Any:
        """Return the values that a downstream task gets."""
        return values

    @task.taskq(topic="results")
    def handle(_: Task) -> None:
        """Handle the remaining tasks."""

    def value(of: Any, name: str) -> Any:
        """Return one value of a task's output."""
        return of.output[name]

    push = TaskQPushOperator(task_id="push", topic="results", tasks=["a", "b"])
    gate = TaskQSensor(task_id="gate", topic=value(push, "topic"), min_tasks=value(push, "pushed"), claim=2)
    deferred = TaskQSensor(task_id="deferred", topic="later", deferrable=True, timeout=120)
    complete = TaskQCompleteOperator(task_id="complete", claim=gate.output)
    release = TaskQReleaseOperator(task_id="release", claim=gate.output).as_teardown(setups=gate)
    handled: Any = handle()  # type: ignore[call-arg,misc]  # the queue passes the task
    complete >> handled
    (
        results(
            {
                "owner": value(gate, "owner"),
                "fence": value(gate, "fence"),
                "completed": value(complete, "completed"),
                "handled": handled["handled"],
                "ready": value(deferred, "ready"),
            }
        )
        >> release
    )
