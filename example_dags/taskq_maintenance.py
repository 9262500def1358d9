"""Watch a queue and install its ticks by DAGs: copy it, replace or remove the ticks of the example, change the numbers.

A queue needs no DAG for its upkeep. Workers, drains and deferred gates expire leases, and remove tasks by the policies
of their topics (`keep_succeeded`, `keep_failed`). These parts are still useful:

- `health` fails, and so alerts, on a finding that is CRITICAL.
- `taskq_ticks` installs recurring tasks.
- `purge` removes names of owners and records of group releases, which have no retention, and tasks of topics without a
  retention.
- `expire` is for a site where no worker, drain or deferred gate runs for hours.

The DAGs need the Airflow connection `taskq_default`.
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
        retries=3,
    )
