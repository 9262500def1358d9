"""How tasks of a DAG own tasks of the queue: under which name, and which."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import conf

from airflow_provider_taskq.queue.owner_names import TaskInstanceName

if TYPE_CHECKING:
    import psycopg
    from airflow.sdk import Context

    from airflow_provider_taskq.queue import Owner

# Who Airflow says maintains a DAG that does not say so itself.
AIRFLOWS_OWNER: str = conf.get("operators", "default_owner", fallback="airflow")


def given_owner(owner: str | None, default_args: Mapping[str, Any] | None) -> str | None:
    """The queue's owner that a DAG's author gave, or None.

    Every Airflow operator has a field of that name too: who maintains the DAG. Airflow fills it in, from
    `default_args` and, on a mapped operator, from its configuration. Taken for the queue's owner, that one name would
    let all gates of an installation lock each other out, so what Airflow fills in does not count.
    """
    if not owner or owner == (default_args or {}).get("owner"):
        return None
    return None if owner == AIRFLOWS_OWNER else owner


def logical_task(context: "Context") -> str:
    """The default owner, `dag_id/run_id/task_id/map_index`: never the try, so that a retry finds its own tasks."""
    ti = context["ti"]
    index = -1 if ti.map_index is None else ti.map_index
    return str(TaskInstanceName(ti.dag_id, ti.run_id, ti.task_id, index))


def held_sequences(connection: "psycopg.Connection[Any]", owner: "Owner", topic: str) -> list[int]:
    """What an owner holds in a topic, by sequence only: payloads stay where they are."""
    rows = connection.execute(
        "SELECT sequence FROM taskq.held(%s::text, %s::bigint, %s::text)", (owner.name, owner.fence, topic)
    )
    return [sequence for (sequence,) in rows]
