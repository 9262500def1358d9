"""A DAG with many gates, which Airflow's scheduler defers without a worker."""

from airflow.sdk import DAG
from airflow.triggers.base import StartTriggerArgs

from airflow_provider_taskq.sensors import TaskQSensor

GATES = 200


class WaitsAtOnce(TaskQSensor):
    """A gate without a first check, because workers would need minutes for hundreds of them."""

    start_from_trigger = True
    start_trigger_args = StartTriggerArgs(
        trigger_cls="airflow_provider_taskq.triggers.topic.TaskQTrigger",
        next_method="execute_complete",
        trigger_kwargs={"topic": "gate-{{ ti.map_index }}", "ends_task": True, "stores": "nothing"},
    )


with DAG("many_waits", schedule=None):
    WaitsAtOnce.partial(task_id="gate", topic="", do_xcom_push=False).expand(poke_interval=[1.0] * GATES)
