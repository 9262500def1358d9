"""DAGs for the tests that kill Airflow's processes or the queue's server: many waiting gates, and many held claims."""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Context, get_current_context, task

from airflow_provider_taskq.queue import Decision, Result
from airflow_provider_taskq.sensors import TaskQSensor

CHECKING, CLAIMING, HOLDING = 18, 6, 6

# Airflow retries the tasks that it loses itself: see the race of fast triggers in docs/why/evidence/decisions.md.
AGAIN: dict[str, Any] = {"retries": 5, "retry_delay": timedelta(seconds=1)}


@task(retries=5, retry_delay=timedelta(seconds=1))
def work(claim: dict[str, Any], conn_id: str) -> int:
    """Complete the tasks of a gate, and record them in the same transaction. A second try has nothing to complete."""
    from airflow_provider_taskq.hooks import TaskQHook

    context: Context = get_current_context()
    with TaskQHook(conn_id).transaction() as queue:
        owner = queue.owner(claim["owner"])
        tasks = queue.held(owner) if owner else []
        if owner and tasks:
            queue.complete(owner, {each.sequence: Decision(Result.SUCCESS) for each in tasks})
            for each in tasks:
                queue.conn.execute(
                    "INSERT INTO ledger VALUES (%s, %s, %s)", (each.identifier, owner.name, context["ti"].try_number)
                )
    return len(tasks)


def gates(dag_id: str, conn_id: str) -> None:
    """Gates that wait, each on a topic of its own. Some claim, and their tasks are completed."""
    gate: dict[str, Any] = {"deferrable": True, "timeout": 900, "taskq_conn_id": conn_id, **AGAIN}
    with DAG(dag_id, schedule=None, max_active_tasks=64):
        TaskQSensor.partial(task_id="check", **gate).expand(topic=[f"check-{number}" for number in range(CHECKING)])
        claims = TaskQSensor.partial(task_id="claim", claim=1, **gate).expand(
            topic=[f"claim-{number}" for number in range(CLAIMING)]
        )
        work.partial(conn_id=conn_id).expand(claim=claims.output)


def held(dag_id: str, conn_id: str) -> None:
    """Gates that claim, and a gate that waits before their tasks are completed."""
    gate: dict[str, Any] = {"deferrable": True, "timeout": 900, "taskq_conn_id": conn_id, **AGAIN}
    with DAG(dag_id, schedule=None, max_active_tasks=64):
        claims = TaskQSensor.partial(task_id="hold", claim=1, **gate).expand(topic=["held"] * HOLDING)
        go = TaskQSensor(task_id="go", topic="go", **gate)
        done = work.partial(conn_id=conn_id).expand(claim=claims.output)
        claims >> go >> done


gates("gates", "taskq_default")
held("held", "taskq_default")
gates("gates_on_own_server", "taskq_own_server")
held("held_on_own_server", "taskq_own_server")
