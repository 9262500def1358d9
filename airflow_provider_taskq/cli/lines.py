"""Tasks as JSON lines: an identifier, or an object with the fields of a new task."""

import json
from collections.abc import Iterable, Iterator

from airflow_provider_taskq.cli.payload import json_value
from airflow_provider_taskq.queue import InvalidTask, NewTask
from airflow_provider_taskq.queue.task_input import new_task


def tasks_of(lines: Iterable[str]) -> Iterator[NewTask]:
    """The task of each line, blank ones aside; InvalidTask names the line, counted from 1."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield new_task(json_value(line))
            except (TypeError, ValueError) as error:
                raise InvalidTask(f"line {number}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """What is wrong with a line, without the line: it holds a payload."""
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg}, at character {error.pos + 1}"
    return str(error)
