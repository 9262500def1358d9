"""DAGs scheduled on topics."""

from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, AssetWatcher

from airflow_provider_taskq.triggers.event import TaskQEventTrigger


def watched(name: str, trigger: Any) -> list[Asset]:
    return [Asset(name, watchers=[AssetWatcher(name=name, trigger=trigger)])]


claims = TaskQEventTrigger(topic="orders", mode="claim", lease=12, cooldown=6)

with DAG("claimed", schedule=watched("orders", claims)):
    EmptyOperator(task_id="run")

with DAG("claimed_twin", schedule=watched("orders_twin", claims)):
    EmptyOperator(task_id="run")
