"""The progress of one partition: in the database under the fence of its lease, or in a tracker."""

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, runtime_checkable

import psycopg

from airflow_provider_taskq.queue import Cursor, PartitionBatch, PartitionLease, TaskQueue
from airflow_provider_taskq.queue.faults import Fault, classify
from airflow_provider_taskq.worker.handlers import HandlerFailed

ProgressCall = Callable[[TaskQueue | None], None]


class ProgressMoved(Exception):
    """Another program has changed the progress. The loop reads again, from the changed progress."""


class DatabaseProgress:
    """Progress in the database, under a lease. `transactional` stores it in the transaction of the handler."""

    def __init__(self, conn: psycopg.Connection, lease: PartitionLease, *, transactional: bool) -> None:
        self.conn = conn
        self.queue = TaskQueue(conn)
        self.lease = lease
        self.transactional = transactional

    def read(self, size: int) -> PartitionBatch:
        """Read the next events after the stored progress."""
        return self.queue.read_partition(self.lease, size)

    def proceed(self, call: ProgressCall, after: Cursor, cursor: Cursor) -> None:
        """Run the call that handles events, then store progress. Store nothing if the call raises."""
        if not self.transactional:
            call(None)
            self.skip(after, cursor)
            return
        try:
            with self.conn.transaction():
                call(self.queue)
                self.skip(after, cursor)
        except psycopg.Error as error:
            if classify(error) is not Fault.INVALID:  # as of a deferred constraint, at the commit
                raise
            raise HandlerFailed from error

    def skip(self, after: Cursor, cursor: Cursor, error: BaseException | None = None) -> None:
        """Store progress past events without a call, and the error that skips the last one.

        Raises ProgressMoved if the progress is not at `after` any more.
        """
        if not self.queue.advance_partition(self.lease, after, cursor, error):
            raise ProgressMoved


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


class TrackedProgress:
    """Progress in a tracker, with the methods of DatabaseProgress. Reads the log from the cursor of the tracker.

    `level` is the level that maps events to `partitions`, or a function, with which the loop selects its events.
    """

    def __init__(
        self, conn: psycopg.Connection, lease: PartitionLease, tracker: ProgressTracker, partitions: int, level: object
    ) -> None:
        self.conn = conn
        self.queue = TaskQueue(conn)
        self.lease = lease
        self.tracker = tracker
        self._part: dict[str, Any] = {}
        if not callable(level):
            self._part = {"partition": lease.partition, "partitions": partitions, "level": level}
        self._key = lease.group, lease.topic, lease.partition

    def read(self, size: int) -> PartitionBatch:
        """Read the next events of the partition after the tracker's cursor."""
        after = self.tracker.current(*self._key) or Cursor(0)
        found = self.queue.events(self.lease.topic, after, size, **self._part)
        return PartitionBatch(found, found.cursor, after)

    def proceed(self, call: ProgressCall, after: Cursor, cursor: Cursor) -> None:  # noqa: ARG002 - no other program moves it
        """Run the call, then store the cursor."""
        self.tracker.proceed(*self._key, lambda: call(None), cursor)

    def skip(self, after: Cursor, cursor: Cursor, error: BaseException | None = None) -> None:  # noqa: ARG002
        """Store the cursor."""
        self.proceed(lambda _: None, after, cursor)


PartitionProgress: TypeAlias = DatabaseProgress | TrackedProgress
