"""A gate that claims, work on its claim, and a completion. The conf of the run decides how the work ends."""

import json
import os
import subprocess
import sys
import time
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

from airflow.sdk import DAG, BaseOperator, Context, get_current_context, task
from pydantic import JsonValue

from airflow_provider_taskq.operators import TaskQCompleteOperator
from airflow_provider_taskq.queue import connect
from airflow_provider_taskq.sensors import TaskQSensor

AGAIN: dict[str, Any] = {"retries": 5, "retry_delay": timedelta(seconds=1)}

with DAG("claims", schedule=None, params={"topic": "work", "first_try": "succeeds"}):
    gate = TaskQSensor(task_id="gate", topic="{{ params.topic }}", claim=2, deferrable=True, timeout=600, **AGAIN)

    @task(retries=5, retry_delay=timedelta(seconds=1))
    def work(claim: Any, params: Any = None) -> None:
        """Record the tasks; then the first try succeeds, fails, or runs until the test ends it."""
        from airflow_provider_taskq.hooks import TaskQHook

        ti = get_current_context()["ti"]
        with TaskQHook().transaction() as queue:
            owner = queue.owner(claim["owner"])
            tasks = sorted(each.identifier for each in queue.held(owner)) if owner else []
            queue.conn.execute(
                "INSERT INTO worked VALUES (%s, %s, %s, %s, %s)",
                (ti.run_id, ti.try_number, tasks, os.getpid(), os.getppid()),
            )
        if ti.try_number == 1 and params["first_try"] == "fails":
            raise RuntimeError("the first try fails")
        if ti.try_number == 1 and params["first_try"] == "runs":
            time.sleep(600)  # long work, which the tests end in different ways

    work(gate.output) >> TaskQCompleteOperator(task_id="complete", claim=gate.output, **AGAIN)

if find_spec("airflow.sdk.bases.resumablejobmixin"):  # Airflow 3.3: tasks reconnect to drivers
    from airflow.sdk import ResumableJobMixin

    class Submit(ResumableJobMixin, BaseOperator):
        """Submits tests/airflow/chaos_driver.py with the base class of SparkSubmitOperator, which makes it durable."""

        template_fields = ("claim", "topic", "driver")
        external_id_key = "job"

        def __init__(self, *, claim: Any, topic: str, driver: str, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.claim, self.topic, self.driver = claim, topic, driver

        def execute(self, context: Context) -> Any:
            """Submit, or reconnect."""
            return self.execute_resumable(context)

        def submit_job(self, context: Context) -> JsonValue:  # noqa: ARG002  Airflow's signature
            """Start a driver that Airflow does not end."""
            job = uuid4().hex
            with connect(os.environ["TASKQ_DSN"], autocommit=True) as connection:
                connection.execute(
                    "INSERT INTO jobs VALUES (%s, %s, 'SUBMITTED', NULL, %s)", (job, self.topic, os.getpid())
                )
            command = [
                sys.executable,
                "-m",
                "tests.airflow.chaos_driver",
                job,
                json.dumps(self.claim),
                self.driver,
            ]
            # With the output of the task, the driver would keep Airflow waiting after the end of the task's process.
            with (Path(os.environ["AIRFLOW_HOME"]) / "logs" / f"driver-{job}.log").open("wb") as output:
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                )
            return job

        def get_job_status(self, external_id: JsonValue, context: Context) -> str:  # noqa: ARG002  the same
            """Return the last state of the driver."""
            with connect(os.environ["TASKQ_DSN"], autocommit=True) as connection:
                row = connection.execute("SELECT state FROM jobs WHERE job = %s", (external_id,)).fetchone()
            return str(row[0]) if row else "UNKNOWN"

        def is_job_active(self, status: str) -> bool:
            """Return whether a driver still runs, so that Airflow reconnects."""
            return status in {"SUBMITTED", "RUNNING"}

        def is_job_succeeded(self, status: str) -> bool:
            """Return whether the driver has finished."""
            return status == "FINISHED"

        def poll_until_complete(self, external_id: JsonValue, context: Context) -> None:
            """Wait for the end of the driver."""
            while self.is_job_active(status := self.get_job_status(external_id, context)):
                time.sleep(0.2)
            if status != "FINISHED":
                raise RuntimeError(f"the driver ended as {status}")

        def get_job_result(self, external_id: JsonValue, context: Context) -> None:
            """Return nothing."""

    def driven(dag_id: str, durable: bool) -> None:
        """Create a DAG whose driver works on the claim of its gate."""
        with DAG(dag_id, schedule=None, params={"topic": "work", "driver": "completes"}) as dag:
            claim = TaskQSensor(
                task_id="gate", topic="{{ params.topic }}", claim=2, deferrable=True, timeout=600, **AGAIN
            ).output
            Submit(
                task_id="submit",
                claim=claim,
                topic="{{ params.topic }}",
                driver="{{ params.driver }}",
                durable=durable,
                **AGAIN,
            ) >> TaskQCompleteOperator(task_id="complete", claim=claim)
        globals()[dag_id] = dag

    driven("durable", durable=True)
    driven("not_durable", durable=False)
