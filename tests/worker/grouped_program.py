"""A program that a test kills while it handles a group.

    python -m tests.worker.grouped_program

The DSN comes from TASKQ_DSN. It prints a line when its handler has a task, and then waits until it is killed.
"""

import sys
import threading

from airflow_provider_taskq.queue import Task
from airflow_provider_taskq.worker import GroupedWorker


def handle(task: Task) -> None:
    """Handles no task to its end."""
    sys.stdout.write(f"{task.identifier}\n")
    sys.stdout.flush()
    threading.Event().wait()


if __name__ == "__main__":
    GroupedWorker(None, "work", handle, lease="1s").run_once()
