"""Push tasks from a DAG, with an operator and in a transaction of your own: copy, and change the names.

The DAG needs the Airflow connection `taskq_default`.
"""

from collections.abc import Iterator

from airflow.sdk import DAG, task

from airflow_provider_taskq.operators import TaskQPushOperator
from airflow_provider_taskq.queue import NewTask

PLANES = {"N14228": 1999, "N24211": 1998, "D-ABCD": 2003}


def planes() -> Iterator[NewTask]:
    """Yield the tasks to push. A generator needs little memory for a million tasks."""
    for tail_number, year in PLANES.items():
        yield NewTask(tail_number, {"year": year})


with DAG("taskq_push", schedule=None, tags=["taskq"]):
    # A repeated push replaces the waiting tasks of the push before it.
    push = TaskQPushOperator(
        task_id="push", topic="planes", tasks=planes, insertion="SUPERSEDE", create_topic=True, retries=2
    )

    @task(retries=2)
    def register_planes() -> int:
        """Store rows and push their tasks: both, or neither. A repeated run pushes nothing for a row that exists."""
        from airflow_provider_taskq.hooks import TaskQHook  # not at the top: PostgresHook takes seconds to import

        with TaskQHook().transaction() as queue:
            queue.create_topic("registrations")
            queue.conn.execute("CREATE TABLE IF NOT EXISTS planes (tail_number text PRIMARY KEY, year integer)")
            stored = [
                tail_number
                for tail_number, year in PLANES.items()
                if queue.conn.execute(
                    "INSERT INTO planes VALUES (%s, %s) ON CONFLICT DO NOTHING", (tail_number, year)
                ).rowcount
            ]
            queue.push("registrations", stored)
        return len(stored)

    push >> register_planes()
