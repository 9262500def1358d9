"""A gate that claims, work on its claim, and a completion. The conf of the run decides how the work ends."""

import os
import time
from datetime import timedelta
from importlib.util import find_spec
from typing import Any, LiteralString

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

    def of_jobs(statement: LiteralString, *values: Any) -> Any:
        """Run a statement on the table of jobs, and return the value of its row."""
        with connect(os.environ["TASKQ_DSN"], autocommit=True) as connection:
            row = connection.execute(statement, values).fetchone()
        return row and row[0]

    class Submit(ResumableJobMixin, BaseOperator):
        """Submits a job with the base class of SparkSubmitOperator, which makes it durable. The test is its driver."""

        template_fields = ("topic",)
        external_id_key = "job"

        def __init__(self, *, topic: str, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.topic = topic

        def execute(self, context: Context) -> Any:
            """Submit, or reconnect."""
            return self.execute_resumable(context)

        def submit_job(self, context: Context) -> JsonValue:  # noqa: ARG002  Airflow's signature
            """Ask the test for a driver."""
            statement = "INSERT INTO jobs (topic, submitter) VALUES (%s, %s) RETURNING job::text"
            return str(of_jobs(statement, self.topic, os.getpid()))

        def get_job_status(self, external_id: JsonValue, context: Context) -> str:  # noqa: ARG002  the same
            """Return the last state of the driver."""
            return str(of_jobs("SELECT state FROM jobs WHERE job::text = %s", external_id))

        def is_job_active(self, status: str) -> bool:
            """Return whether a driver still runs, so that Airflow reconnects."""
            return status == "RUNNING"

        def is_job_succeeded(self, status: str) -> bool:
            """Return whether the driver has finished."""
            return status == "FINISHED"

        def poll_until_complete(self, external_id: JsonValue, context: Context) -> None:
            """Wait for the end of the driver."""
            while self.is_job_active(status := self.get_job_status(external_id, context)):
                time.sleep(0.2)
            if not self.is_job_succeeded(status):
                raise RuntimeError(f"the driver ended as {status}")

        def get_job_result(self, external_id: JsonValue, context: Context) -> None:
            """Return nothing."""

    for durable in (True, False):
        with DAG("durable" if durable else "not_durable", schedule=None, params={"topic": "work"}):
            claim = TaskQSensor(
                task_id="gate", topic="{{ params.topic }}", claim=2, deferrable=True, timeout=600, **AGAIN
            )
            submit = Submit(task_id="submit", topic="{{ params.topic }}", durable=durable, **AGAIN)
            claim >> submit >> TaskQCompleteOperator(task_id="complete", claim=claim.output)
