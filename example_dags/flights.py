"""One DAG pushes the flights that left New York in 2013. Another one gates them and drains them with Spark.

`make demo` starts the second DAG first, to show that its gate waits for the push.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from airflow.sdk import DAG, Param

from airflow_provider_taskq.operators import TaskQPushOperator, TaskQSparkSubmitOperator
from airflow_provider_taskq.queue import NewTask
from airflow_provider_taskq.sensors import TaskQSensor

TOPIC = "flights"


def flights(params: Mapping[str, Any]) -> Iterator[NewTask]:
    """Yield the tasks to push: a generator keeps few of them in memory."""
    from demo import flights as data

    return data.flights(params["flights"])


with DAG(
    "flights_push",
    schedule=None,
    params={"flights": Param(None, type=["null", "integer"], minimum=1, description="how many; empty for all")},
    tags=["taskq"],
):
    TaskQPushOperator(task_id="push", topic=TOPIC, tasks=flights, create_topic=True)


with DAG("flights_drain", schedule=None, tags=["taskq"]):
    gate = TaskQSensor(task_id="gate", topic=TOPIC, deferrable=True, timeout=3600)

    # The Spark driver claims under the name of this task, so that a retry finds the same tasks.
    drain = TaskQSparkSubmitOperator(
        task_id="drain",
        topic=TOPIC,
        transform="demo.decide:decide",
        name="flights",
        retries=2,
        retry_delay=5,
    )

    gate >> drain
