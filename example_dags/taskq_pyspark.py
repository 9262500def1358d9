"""Drain a topic in a task with its own Spark session: copy, and change the names."""

from typing import Any

from airflow.sdk import DAG, get_current_context, task

from airflow_provider_taskq import metrics
from airflow_provider_taskq.parameters import logical_task_name
from airflow_provider_taskq.queue import Result, Task

with DAG("taskq_pyspark", schedule=None, tags=["taskq"]):

    @task.pyspark(conn_id="spark_default", retries=2)
    def drain_planes(spark: Any = None) -> int:  # Airflow passes the session
        """Accept planes with a tail number that begins with N; filter the others."""
        from airflow_provider_taskq.hooks import TaskQHook
        from airflow_provider_taskq.spark import by_task, drain

        # Spark pickles a nested function by value. Executors would have to import a function of the module.
        def decide(plane: Task) -> Result:
            return Result.SUCCESS if plane.identifier.startswith("N") else Result.FILTER

        owner = logical_task_name(get_current_context()["ti"])  # a retry continues with the same tasks
        with TaskQHook().get_conn() as connection:
            result = drain(spark, "planes", owner, by_task(decide), dsn=connection)
        metrics.drained(result)  # TaskQSparkSubmitOperator calls this by itself
        return result.done

    drain_planes()
