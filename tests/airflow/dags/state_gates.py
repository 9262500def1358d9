"""Gates on states and junctures that are deferred."""

from airflow.sdk import DAG

from airflow_provider_taskq.sensors import TaskQJunctureSensor, TaskQStateSensor

with DAG("state_gate", schedule=None, params={"topic": "states"}):
    TaskQStateSensor(
        task_id="gate",
        topic="{{ params.topic }}",
        identifiers=["a", "b"],
        deferrable=True,
        timeout=300,
        retries=2,
        retry_delay=1,
    ) >> TaskQStateSensor(
        task_id="again", topic="{{ ti.xcom_pull('gate')['topic'] }}", identifiers=["a"], deferrable=True, timeout=300
    )

with DAG("juncture_gate", schedule=None, params={"topic": "joined"}):
    TaskQJunctureSensor(
        task_id="gate", topic="{{ params.topic }}", groups=[["a", "b"], ["c"]], deferrable=True, timeout=300
    )
