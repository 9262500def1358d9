"""DAGs scheduled on topics."""

from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_taskq.hooks import TaskQHook
from airflow_provider_taskq.triggers.event import TaskQEventTrigger


@task(retries=2, retry_delay=1)
def record(topic: str, triggering_asset_events: Any = None) -> None:
    """Record the tasks of the run's events: one task each, in a topic without consumers."""
    events = [event for each in triggering_asset_events.values() for event in each]
    sequences = [sequence for event in events for sequence in event.extra["payload"]["sequences"]]
    with TaskQHook().transaction() as queue:
        queue.push(topic, [str(sequence) for sequence in sequences])


def watched(name: str, trigger: Any) -> list[Asset]:
    return [Asset(name, watchers=[AssetWatcher(name=name, trigger=trigger)])]


# Where a loop of the scheduler takes longer than the cooldown, the closing events start the runs of the last tasks.
claims = TaskQEventTrigger(topic="orders", mode="claim", lease=12, cooldown=6, closing_events=6)

with DAG("claimed", schedule=watched("orders", claims)):
    record("recorded-claimed")

with DAG("claimed_twin", schedule=watched("orders_twin", claims)):
    record("recorded-twin")
