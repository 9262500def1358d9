"""Maintain a queue by DAGs: copy it, replace or remove the ticks of the example (DAG taskq_ticks), change the numbers.

A queue with workers, drains or deferred gates expires leases itself, and purges by the policies of its topics
(`keep_succeeded`, `keep_failed`). These DAGs are for sites that schedule all of it, and for ticks and health checks.

The DAGs need the Airflow connection `taskq_default`. Every minute one expires lapsed leases, which frees the tasks of
dead workers, and checks the queue's health. Every hour one installs ticks. Every night one purges old rows.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG

from airflow_provider_taskq.operators import (
    TaskQExpireOperator,
    TaskQHealthOperator,
    TaskQPurgeOperator,
    TaskQTicksOperator,
)

# One run at a time, no catch-up, and a timeout for each run.
DAGS: dict[str, Any] = {
    "start_date": datetime(2026, 1, 1, tzinfo=UTC),
    "catchup": False,
    "max_active_runs": 1,
    "dagrun_timeout": timedelta(hours=4),
    "tags": ["taskq"],
}

with DAG("taskq_watch", schedule="* * * * *", **DAGS):
    TaskQExpireOperator(task_id="expire")
    TaskQHealthOperator(task_id="health", fail_at="CRITICAL", patience=timedelta(minutes=15))

with DAG("taskq_ticks", schedule="@hourly", **DAGS):
    # Two tasks a day, installed two days ahead: the DAG may be down for two days.
    TaskQTicksOperator(
        task_id="ticks",
        topic="reports",
        prefix="daily-report",
        daily=["06:00", "18:00"],
        zone="Europe/Berlin",
        ahead=timedelta(days=2),
        payload={"kind": "daily"},
        create_topic=True,
        retries=3,
    )

with DAG("taskq_purge", schedule="17 3 * * *", **DAGS):
    TaskQPurgeOperator(
        task_id="purge",
        older_than=timedelta(days=30),
        owners_older_than=timedelta(days=30),
        group_releases_older_than=timedelta(days=30),
        retries=3,
    )
