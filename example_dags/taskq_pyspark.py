"""Drain a topic in a task that has a Spark session of its own: copy, and change the names."""

from typing import Any

from airflow.sdk import DAG, get_current_context, task

from airflow_provider_taskq import metrics
from airflow_provider_taskq.operators.claims import logical_task
from airflow_provider_taskq.queue import Result, Task

with DAG("taskq_pyspark", schedule=None, tags=["taskq"]):

    @task.pyspark(conn_id="spark_default", retries=2)
    def drain_planes(spark: Any = None) -> int:  # Airflow gives the session
        """Accepts planes whose tail number begins with N; filters the others."""
        from airflow_provider_taskq.hooks import TaskQHook
        from airflow_provider_taskq.spark import by_task, drain

        # A function in a function is sent to the executors whole; one beside it they would have to import.
        def decide(plane: Task) -> Result:
            return Result.SUCCESS if plane.identifier.startswith("N") else Result.FILTER

        owner = logical_task(get_current_context())  # a retry goes on with the same tasks
        with TaskQHook().get_conn() as connection:
            result = drain(spark, "planes", owner, by_task(decide), dsn=connection)
        metrics.drained(result)  # as TaskQSparkSubmitOperator does by itself
        return result.done

    drain_planes()
