"""DAGs that run when a topic has tasks: copy, and change the names. They need the Airflow connection `taskq_default`.

`taskq_wake` runs when tasks are ready, polls them, and decides how they end. `taskq_each` gets an event for each task;
the trigger completes the task once Airflow has stored the event. It needs Airflow 3.3.
"""

from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_taskq.queue import Result, Task
from airflow_provider_taskq.triggers.event import TaskQEventTrigger, has_shared_streams

invoices = Asset("invoices", watchers=[AssetWatcher(name="ready", trigger=TaskQEventTrigger(topic="invoices"))])


def decide(invoice: Task) -> Result:
    """Decide on one task. Writes through the same hook commit together with the decision."""
    return Result.SUCCESS if invoice.identifier else Result.FILTER


with DAG("taskq_wake", schedule=[invoices], max_active_runs=1, tags=["taskq"]):

    @task(retries=2)
    def handle_ready(ti: Any = None) -> int:
        """Handle all ready tasks, a hundred per transaction."""
        from airflow_provider_taskq.hooks import TaskQHook  # not at the top: PostgresHook takes seconds to import

        hook, done = TaskQHook(), 0
        while True:
            with hook.transaction() as queue:
                owner = queue.register(f"{ti.dag_id}/{ti.run_id}/{ti.task_id}")
                tasks = queue.poll("invoices", owner, size=100)
                queue.complete(owner, {invoice: decide(invoice) for invoice in tasks})
                done += len(tasks)
            if not tasks:
                return done

    handle_ready()

if has_shared_streams():
    claims = TaskQEventTrigger(topic="signups", mode="claim", batch_size=10)
    signups = Asset("signups", watchers=[AssetWatcher(name="claimed", trigger=claims)])

    with DAG("taskq_each", schedule=[signups], tags=["taskq"]):

        @task(retries=2)
        def greet(triggering_asset_events: Any = None) -> list[int]:
            """Use a set: a run may have several events, and a crash of the triggerer may repeat one."""
            from airflow_provider_taskq.hooks import TaskQHook

            events = triggering_asset_events[signups]
            sequences = {sequence for event in events for sequence in event.extra["payload"]["sequences"]}
            with TaskQHook().transaction() as queue:
                tasks = [queue.task("signups", sequence) for sequence in sorted(sequences)]
            return [signup.sequence for signup in tasks if signup is not None]

        greet()
