"""A worker program that the chaos test starts, kills and stops.

    python -m tests.worker.chaos_worker

The DSN comes from TASKQ_DSN. Each task leaves a row in `effect`, in the transaction that completes it.
"""

import logging
from collections.abc import Mapping
from datetime import timedelta

from airflow_provider_taskq.queue import Condition, Decision, Task, TaskQueue
from airflow_provider_taskq.worker import Batch, Worker, batch

LEASE = timedelta(seconds=1.5)
INSERT = "INSERT INTO effect (sequence, identifier, number) VALUES (%s, %s, %s)"


def handle(batch: Batch) -> None:
    """Stores the effect of each task, and pushes a follow-up for every tenth task."""

    def write(queue: TaskQueue, decisions: Mapping[Task, Decision]) -> None:
        queue.conn.cursor().executemany(INSERT, [(task.sequence, task.identifier, task.payload) for task in decisions])

    batch.in_commit(write)
    for task in batch.tasks:
        if isinstance(task.payload, int) and task.payload % 10 == 0:
            batch.push(task, "after", [f"{task.identifier} {task.payload}"])


def main() -> None:
    """Runs a worker until SIGTERM."""
    logging.basicConfig(level=logging.INFO)
    Worker(
        None,
        "work",
        batch(handle),
        size=5,
        workers=2,
        condition=Condition.SINGULAR_BY_IDENTIFIER,
        lease=LEASE,
        pause=timedelta(milliseconds=100),
    ).run()


if __name__ == "__main__":
    main()
