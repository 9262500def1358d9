"""DAGs for the tests that kill Airflow's processes: many gates that wait, and many claims that are held."""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Context, get_current_context, task

from airflow_provider_taskq.queue import Decision, Result
from airflow_provider_taskq.sensors import TaskQSensor

LOOKING, CLAIMING, HOLDING = 180, 20, 50

# What Airflow itself loses, it runs again: see the decisions on the race of fast triggers.
AGAIN: dict[str, Any] = {"retries": 5, "retry_delay": timedelta(seconds=1)}


@task(retries=5, retry_delay=timedelta(seconds=1))
def work(claim: dict[str, Any]) -> int:
    """Completes what a gate took, and writes it down in the same transaction. A second try finds nothing to do."""
    from airflow_provider_taskq.hooks import TaskQHook

    context: Context = get_current_context()
    with TaskQHook().transaction() as queue:
        owner = queue.owner(claim["owner"])
        tasks = queue.held(owner) if owner else []
        if owner and tasks:
            queue.complete(owner, {each.sequence: Decision(Result.SUCCESS) for each in tasks})
            for each in tasks:
                queue.conn.execute(
                    "INSERT INTO ledger VALUES (%s, %s, %s)", (each.identifier, owner.name, context["ti"].try_number)
                )
    return len(tasks)


with DAG("gates", schedule=None, max_active_tasks=64):
    TaskQSensor.partial(task_id="look", deferrable=True, timeout=900, **AGAIN).expand(
        topic=[f"look-{number}" for number in range(LOOKING)]
    )
    claims = TaskQSensor.partial(task_id="claim", claim=1, deferrable=True, timeout=900, **AGAIN).expand(
        topic=[f"claim-{number}" for number in range(CLAIMING)]
    )
    work.expand(claim=claims.output)

with DAG("held", schedule=None, max_active_tasks=64):
    held = TaskQSensor.partial(task_id="hold", claim=1, deferrable=True, timeout=900, **AGAIN).expand(
        topic=["held"] * HOLDING
    )
    go = TaskQSensor(task_id="go", topic="go", deferrable=True, timeout=900, **AGAIN)
    done = work.expand(claim=held.output)
    held >> go >> done
