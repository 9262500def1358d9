"""The flights that left New York in 2013: pushed by one DAG, gated and drained with Spark by another.

`make demo` runs both, the second one first, to show its gate wait for the push.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from airflow.sdk import DAG, Param

from airflow_provider_taskq.operators import TaskQPushOperator, TaskQSparkSubmitOperator
from airflow_provider_taskq.queue import NewTask
from airflow_provider_taskq.sensors import TaskQSensor

TOPIC = "flights"


def flights(params: Mapping[str, Any]) -> Iterator[NewTask]:
    """The tasks to push: a generator, so that however many there are, few are in memory."""
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

    # The claim is made by the Spark driver under the name of this task, so that a retry finds its own tasks again.
    drain = TaskQSparkSubmitOperator(
        task_id="drain",
        topic=TOPIC,
        transform="demo.decide:decide",
        name="flights",
        retries=2,
        retry_delay=5,
    )

    gate >> drain
