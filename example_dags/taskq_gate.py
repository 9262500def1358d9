"""Push tasks, wait until there are enough of them, then let Spark work them off: copy, and change the names."""

from pathlib import Path

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG

from airflow_provider_taskq.operators import TaskQPushOperator
from airflow_provider_taskq.sensors import TaskQSensor
from airflow_provider_taskq.spark import application_path

with DAG("taskq_gate", schedule=None, tags=["taskq"]):
    push = TaskQPushOperator(task_id="push", topic="planes", tasks=["N14228", "N24211", "N619AA"], create_topic=True)
    gate = TaskQSensor(task_id="gate", topic="planes", min_tasks=3, deferrable=True, timeout=3600)
    drain = SparkSubmitOperator(
        task_id="drain",
        application=application_path(),
        application_args=[
            *("--topic", "planes", "--owner", "{{ ti.dag_id }}/{{ ti.run_id }}/{{ ti.task_id }}/{{ ti.map_index }}"),
            *("--transform", "plane_decisions:decide"),
        ],
        py_files=str(Path(__file__).with_name("plane_decisions.py")),
        retries=2,
    )
    push >> gate >> drain
