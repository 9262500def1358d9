"""A task as rows and documents show it."""

from dataclasses import asdict
from datetime import datetime
from typing import Any

from airflow_provider_taskq.cli.words import ago
from airflow_provider_taskq.queue.reports import TaskLine

COLUMNS = ("#sequence", "~identifier", "status", "?#attempt", "?pushed", "due or ended", "?~owner", "~error")


def task_document(task: TaskLine) -> dict[str, Any]:
    """Everything about a task but its payload and output, which may be private."""
    descent = None if task.descent is None else task.descent.name
    return {**asdict(task), "state": task.state.name, "descent": descent}


def task_row(task: TaskLine, now: datetime) -> tuple[object, ...]:
    """In the order of COLUMNS."""
    return (
        *(str(task.sequence), task.identifier, status_word(task.status)),
        *(task.attempt or "", ago(task.created, now), _due(task, now), task.owner, shortened(task.error_summary)),
    )


def status_word(status: str) -> str:
    """The word for a status in lists: a task without attempts left is a failed one there."""
    return "failed" if status == "exhausted" else status


def shortened(line: str | None, width: int = 60) -> str:
    """As much of a line as a table has room for."""
    line = line or ""
    return line if len(line) <= width else f"{line[: width - 3]}..."


def _due(task: TaskLine, now: datetime) -> str:
    """When it is due, while that is to come; how long ago it ended, where it has."""
    if task.completed is not None:
        return ago(task.completed, now)
    return ago(task.available_at, now) if task.available_at > now else ""
