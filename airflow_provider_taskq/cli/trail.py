"""The trail of what people do."""

import psycopg

from airflow_provider_taskq.queue import TaskQueue


def note(queue: TaskQueue, action: str, topic: str | None, what: str, count: int) -> None:
    """Enters an action in the trail, where the role may: a producer pushes all the same, and is in no trail."""
    try:
        with queue.conn.transaction():
            queue.note_action(action, topic, what, count)
    except psycopg.errors.InsufficientPrivilege:
        return
