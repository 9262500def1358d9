"""Handlers for `taskq worker`."""

import os
from pathlib import Path

from airflow_provider_taskq.queue import Result, Task


def succeed(task: Task) -> Result:
    """Succeeds, except for a task with the payload `fail`."""
    return Result.FAILURE if task.payload == "fail" else Result.SUCCESS


def wait(task: Task) -> Result:  # noqa: ARG001  handlers are called so
    """Creates a file at its start, and ends when another file exists."""
    started, go_on = os.environ["TASKQ_TEST_FILES"].split(":")
    Path(started).touch()
    while not Path(go_on).exists():
        os.sched_yield()
    return Result.SUCCESS


def deliver(task: Task) -> Result:
    """Fails for each task whose identifier starts with `bad`."""
    if task.identifier.startswith("bad"):
        raise ValueError(f"no mailbox for {task.identifier}")
    return Result.SUCCESS
