"""Push tasks, claim them with a gate, and drain the claim with Spark: copy, and change the names."""

from pathlib import Path

from airflow.sdk import DAG

from airflow_provider_taskq.operators import TaskQPushOperator
from airflow_provider_taskq.operators.spark_submit import TaskQSparkSubmitOperator
from airflow_provider_taskq.sensors import TaskQSensor

with DAG("taskq_gate", schedule=None, tags=["taskq"]):
    push = TaskQPushOperator(task_id="push", topic="planes", tasks=["N14228", "N24211", "N619AA"], create_topic=True)
    gate = TaskQSensor(task_id="gate", topic="planes", min_tasks=3, claim=100, deferrable=True, timeout=3600)
    drain = TaskQSparkSubmitOperator(
        task_id="drain",
        claim=gate.output,  # only the tasks that the gate claimed
        transform="plane_decisions:decide",
        py_files=str(Path(__file__).with_name("plane_decisions.py")),
        retries=2,
    )
    push >> gate >> drain
