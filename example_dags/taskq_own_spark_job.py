"""Put a gate before a Spark job of your own: copy, and change the names.

The gate claims tasks, the job reads them, and the DAG completes them. If the job fails, the teardown releases them, and
they are ready again at once. The DAG needs the Airflow connections `taskq_default` and `spark_default`, and the topic
`planes`. The job finds the database in TASKQ_DSN, or in the file that TASKQ_DSN_FILE names, of Airflow's workers.
"""

import os
from pathlib import Path

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG

from airflow_provider_taskq.operators import TaskQCompleteOperator, TaskQReleaseOperator
from airflow_provider_taskq.sensors import TaskQSensor

FOLDER = os.environ.get("PLANES_FOLDER", "/data/planes")  # where the job writes

with DAG("taskq_own_spark_job", schedule=None, max_active_runs=1, tags=["taskq"]):
    gate = TaskQSensor(task_id="gate", topic="planes", claim=10_000, lease="2h", deferrable=True, timeout=3600)
    job = SparkSubmitOperator(
        task_id="job",
        application=str(Path(__file__).with_name("plane_job.py")),
        application_args=[
            "--owner={{ ti.xcom_pull('gate')['owner'] }}",
            "--fence={{ ti.xcom_pull('gate')['fence'] }}",
            f"--folder={FOLDER}",
        ],
        durable=False,  # Airflow 3.3 would submit nothing when a finished run is cleared
        retries=2,
    )
    complete = TaskQCompleteOperator(task_id="complete", claim=gate.output, retries=2)
    release = TaskQReleaseOperator(task_id="release", claim=gate.output, retries=2).as_teardown(setups=gate)
    gate >> job >> complete >> release
