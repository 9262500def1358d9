"""The claims of an Airflow task: their form, and the owner under which a task claims by default."""

from typing import TYPE_CHECKING

from airflow_provider_taskq.queue.claims import Claim, held_sequences
from airflow_provider_taskq.queue.owner_names import TaskInstanceName

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["Claim", "held_sequences", "logical_task"]


def logical_task(context: "Context") -> str:
    """The default owner, `dag_id/run_id/task_id/map_index`: never the try, so that a retry finds its own tasks."""
    ti = context["ti"]
    index = -1 if ti.map_index is None else ti.map_index
    return str(TaskInstanceName(ti.dag_id, ti.run_id, ti.task_id, index))
