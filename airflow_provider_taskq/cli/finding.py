"""Tasks by a filter, in pages."""

from dataclasses import dataclass

from airflow_provider_taskq.queue import TaskQueue
from airflow_provider_taskq.queue.reports import TaskFilter, TaskLine

ERROR = 10_000  # characters of an error, as many as a stored one has


@dataclass(frozen=True, slots=True)
class Page:
    """Tasks, and the sequence after which the next page begins, None at the end.

    `stopped`: the page is not full, as it had looked at as many rows as one may.
    """

    tasks: list[TaskLine]
    next: int | None
    stopped: bool


def page_of(queue: TaskQueue, topic: str, given: TaskFilter, size: int, *, after: int | None, newest: bool) -> Page:
    """At most `size` tasks that the filter finds beyond `after`."""
    found = queue.find_tasks(topic, given, after=after, newest=newest, size=size + 1)
    tasks = queue.browse_tasks(topic, found.sequences[:size], ERROR)
    if len(found.sequences) > size:
        return Page(tasks, found.sequences[size - 1], stopped=False)
    return Page(tasks, found.looked_to, stopped=found.looked_to is not None)


def sequences_of(queue: TaskQueue, topic: str, given: TaskFilter, size: int) -> tuple[list[int], bool]:
    """The lowest sequences that the filter finds, at most `size`, and whether there may be more."""
    sequences: list[int] = []
    after: int | None = None
    while True:
        found = queue.find_tasks(topic, given, after=after, newest=False, size=size - len(sequences) + 1)
        sequences += found.sequences
        if len(sequences) > size:
            return sequences[:size], True
        if found.looked_to is None:
            return sequences, False
        after = found.looked_to
