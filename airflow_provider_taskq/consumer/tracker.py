"""Trackers: where the progress of a group is stored outside the queue."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from airflow_provider_taskq.queue import Cursor


@runtime_checkable
class ProgressTracker(Protocol):
    """Stores the progress of a group outside the queue. A consumer calls it from several threads, one a partition."""

    def current(self, group: str, topic: str, partition: int) -> Cursor | None:
        """Return the stored cursor, or None to start with the first event."""

    def proceed(self, group: str, topic: str, partition: int, call: Callable[[], None], cursor: Cursor) -> None:
        """Call `call`, which handles an event, then store `cursor`. Store nothing if `call` raises."""


class MemoryTracker:
    """Progress in the memory of this process: another process starts with the first event."""

    def __init__(self) -> None:
        self._cursors: dict[tuple[str, str, int], Cursor] = {}

    def current(self, group: str, topic: str, partition: int) -> Cursor | None:
        """Return the stored cursor, or None."""
        return self._cursors.get((group, topic, partition))

    def proceed(self, group: str, topic: str, partition: int, call: Callable[[], None], cursor: Cursor) -> None:
        """Run the call, then store the cursor."""
        call()
        self._cursors[group, topic, partition] = cursor
