"""DAGs scheduled on topics."""

from typing import Any

from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_taskq.hooks import TaskQHook
from airflow_provider_taskq.queue import Result
from airflow_provider_taskq.triggers.event import TaskQEventTrigger


@task(retries=2, retry_delay=1)
def record(topic: str, triggering_asset_events: Any = None) -> None:
    """Record the tasks of the run's events: one task each, in a topic without consumers."""
    events = [event for each in triggering_asset_events.values() for event in each]
    sequences = [sequence for event in events for sequence in event.extra["payload"]["sequences"]]
    with TaskQHook().transaction() as queue:
        queue.push(topic, [str(sequence) for sequence in sequences])


@task(retries=2, retry_delay=1)
def drain(topic: str, ti: Any = None) -> int:
    """Complete all tasks of a topic."""
    taken = 0
    with TaskQHook().transaction() as queue:
        owner = queue.register(f"{ti.dag_id}/{ti.run_id}")
        while tasks := queue.poll(topic, owner, 100):
            queue.complete(owner, dict.fromkeys(tasks, Result.SUCCESS))
            taken += len(tasks)
    return taken


def watched(name: str, trigger: Any) -> list[Asset]:
    return [Asset(name, watchers=[AssetWatcher(name=name, trigger=trigger)])]


claims = TaskQEventTrigger(topic="orders", mode="claim", lease=12, cooldown=6)
queued = MessageQueueTrigger(scheme="taskq", topic="letters", mode="claim", batch_size=10, cooldown=6)

with DAG("claimed", schedule=watched("orders", claims)):
    record("recorded-claimed")

with DAG("claimed_twin", schedule=watched("orders_twin", claims)):
    record("recorded-twin")

with DAG("queued", schedule=watched("letters", queued)):
    record("recorded-queued")

with DAG("peeked", schedule=watched("parcels", TaskQEventTrigger(topic="parcels")), max_active_runs=1):
    drain("parcels")
