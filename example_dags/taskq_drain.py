"""Wait for tasks, drain all of them with Spark, and fail if too many tasks fail: copy, and change the names.

The DAG needs the Airflow connections `taskq_default` and `spark_default`, and the topic `planes`.
"""

from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG

from airflow_provider_taskq.operators import TaskQSparkSubmitOperator
from airflow_provider_taskq.sensors import TaskQSensor

with DAG("taskq_drain", schedule=None, max_active_runs=1, tags=["taskq"]):
    # Opens when 1,000 tasks are ready. Opens for fewer when the oldest has waited for a minute.
    gate = TaskQSensor(
        task_id="gate", topic="planes", min_tasks=1000, max_wait=timedelta(minutes=1), deferrable=True, timeout=3600
    )
    drain = TaskQSparkSubmitOperator(
        task_id="drain",
        topic="planes",
        transform="plane_decisions:decide",
        py_files=str(Path(__file__).with_name("plane_decisions.py")),
        size=10_000,  # tasks in a round, which is one transaction
        rounds="all",  # until no task is ready
        deadline=timedelta(minutes=30),  # no round begins after it
        max_failed="5%",  # else the Airflow task fails, after all decisions are committed
        retries=2,
    )
    gate >> drain
