"""Keeps a queue in order: copy it, replace or remove the example's ticks (DAG taskq_ticks), and change the numbers.

It needs the Airflow connection `taskq_default`. Every minute it takes leases that have lapsed, so that what a dead
worker held goes out again, and looks at the queue's health; every hour it makes ticks ahead; every night it removes
what is old.
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

# One run at a time, none for times that have passed, and none that outlives its turn.
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
    # A task a day for each of two times, made two days ahead: the DAG may stand still for as long.
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
        junctures_older_than=timedelta(days=30),
        retries=3,
    )
