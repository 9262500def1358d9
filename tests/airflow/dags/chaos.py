"""DAGs for the tests that kill Airflow's processes or the queue's server: many waiting gates, and many held claims."""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Context, get_current_context, task

from airflow_provider_taskq.queue import Decision, Result
from airflow_provider_taskq.sensors import TaskQSensor

CHECKING, CLAIMING, HOLDING = 18, 6, 6
CONN_ID = "taskq_own_server"

# Airflow retries the tasks that it loses itself: see the race of fast triggers in docs/why/evidence/decisions.md.
AGAIN: dict[str, Any] = {"retries": 5, "retry_delay": timedelta(seconds=1)}


@task(retries=5, retry_delay=timedelta(seconds=1))
def work(claim: dict[str, Any]) -> int:
    """Complete the tasks of a gate, and record them in the same transaction. A second try has nothing to complete."""
    from airflow_provider_taskq.hooks import TaskQHook

    context: Context = get_current_context()
    with TaskQHook(CONN_ID).transaction() as queue:
        owner = queue.owner(claim["owner"])
        tasks = queue.held(owner) if owner else []
        if owner and tasks:
            queue.complete(owner, {each.sequence: Decision(Result.SUCCESS) for each in tasks})
            for each in tasks:
                queue.conn.execute(
                    "INSERT INTO ledger VALUES (%s, %s, %s)", (each.identifier, owner.name, context["ti"].try_number)
                )
    return len(tasks)


gate: dict[str, Any] = {"deferrable": True, "timeout": 900, "taskq_conn_id": CONN_ID, **AGAIN}

# Gates that wait, each on a topic of its own. Some claim, and their tasks are completed.
with DAG("gates", schedule=None, max_active_tasks=64):
    TaskQSensor.partial(task_id="check", **gate).expand(topic=[f"check-{number}" for number in range(CHECKING)])
    claims = TaskQSensor.partial(task_id="claim", claim=1, **gate).expand(
        topic=[f"claim-{number}" for number in range(CLAIMING)]
    )
    work.expand(claim=claims.output)

# Gates that claim, and a gate that waits before their tasks are completed.
with DAG("held", schedule=None, max_active_tasks=64):
    holds = TaskQSensor.partial(task_id="hold", claim=1, **gate).expand(topic=["held"] * HOLDING)
    holds >> TaskQSensor(task_id="go", topic="go", **gate) >> work.expand(claim=holds.output)
