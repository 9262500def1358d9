"""Progress of one partition: in the database under the leader's fence, in memory, or in a tracker of yours."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import psycopg
from psycopg.pq import TransactionStatus

from airflow_provider_taskq.consumer.errors import HandlerFailed
from airflow_provider_taskq.queue import Cursor, PartitionBatch, PartitionLease, TaskQueue
from airflow_provider_taskq.queue.connection import CallLimit

ProgressCall = Callable[[TaskQueue | None], None]

# The level of a group whose programs choose partitions by a callable. No identifier has that many levels.
CALLABLE_LEVEL = 2**31 - 1


class ProgressMoved(Exception):
    """Somebody has put progress elsewhere: read anew, from there."""


class PartitionProgress(Protocol):
    """What a loop needs to know of how progress is kept."""

    conn: psycopg.Connection

    def read(self, size: int) -> PartitionBatch:
        """The next events after progress."""

    def proceed(self, call: ProgressCall, after: Cursor, cursor: Cursor) -> None:
        """Does the work of an event, and then stores progress; of work that raises none is."""

    def skip(self, after: Cursor, cursor: Cursor) -> None:
        """Stores progress past events that nothing is done about."""


class DatabaseProgress:
    """Progress in the database, stored only as long as we lead; with the handler's own rows if `transactional`."""

    def __init__(self, conn: psycopg.Connection, led: PartitionLease, limit: CallLimit, *, transactional: bool) -> None:
        self.conn = conn
        self.queue = TaskQueue(conn)
        self.led = led
        self.limit = limit
        self.transactional = transactional

    def read(self, size: int) -> PartitionBatch:
        """The next events after the progress that is stored."""
        return self.queue.read_partition(self.led, size)

    def proceed(self, call: ProgressCall, after: Cursor, cursor: Cursor) -> None:
        """ProgressCall and progress in one transaction, or one after the other."""
        if not self.transactional:
            call(None)
            self.skip(after, cursor)
            return
        try:
            with self.conn.transaction():
                with self.limit.for_handler_statements():
                    call(self.queue)
                if self.conn.info.transaction_status == TransactionStatus.INERROR:
                    raise HandlerFailed("a handler went on after a statement had failed, which undid its transaction")
                self.skip(after, cursor)
        except psycopg.IntegrityError as error:  # of a deferred constraint, at the commit
            raise HandlerFailed from error

    def skip(self, after: Cursor, cursor: Cursor) -> None:
        """Stores progress; Moved where it is not at `after` any more."""
        if not self.queue.advance_partition(self.led, after, cursor):
            raise ProgressMoved


@runtime_checkable
class ProgressTracker(Protocol):
    """Stores how far a group got, in a place of yours. A reader uses it from one thread for each partition."""

    def current(self, group: str, topic: str, partition: int) -> Cursor | None:
        """The place that is stored; None if there is none, and the partition begins with the first event."""

    def proceed(self, group: str, topic: str, partition: int, call: Callable[[], None], cursor: Cursor) -> None:
        """Does the work of an event, then stores the place after it. Stores nothing, and raises it, if work raises."""


class MemoryTracker:
    """Places in the memory of this program, by partition."""

    def __init__(self) -> None:
        self._places: dict[int, Cursor] = {}

    def current(self, group: str, topic: str, partition: int) -> Cursor | None:  # noqa: ARG002  of one reader
        """The place in memory."""
        return self._places.get(partition)

    def proceed(self, group: str, topic: str, partition: int, call: Callable[[], None], cursor: Cursor) -> None:  # noqa: ARG002
        """The call, and then the place."""
        call()
        self._places[partition] = cursor


class TrackedProgress:
    """Progress in a tracker; the log is read from the tracker's place."""

    def __init__(self, conn: psycopg.Connection, led: PartitionLease, tracker: ProgressTracker) -> None:
        self.conn = conn
        self.queue = TaskQueue(conn)
        self.led = led
        self.tracker = tracker

    def read(self, size: int) -> PartitionBatch:
        """The next events of the partition after the tracker's place."""
        led, after = self.led, self.tracker.current(*self._key) or Cursor(0)
        if led.level == CALLABLE_LEVEL:  # the loop chooses
            found = self.queue.events(led.topic, after, size)
        else:
            found = self.queue.events(
                led.topic, after, size, partition=led.partition, partitions=led.partitions, level=led.level
            )
        return PartitionBatch(found, found.cursor if len(found) < size else found[-1][0], after, at_end=False)

    def proceed(self, call: ProgressCall, after: Cursor, cursor: Cursor) -> None:  # noqa: ARG002 - no other program moves it
        """The call, and then the place."""
        self.tracker.proceed(*self._key, lambda: call(None), cursor)

    def skip(self, after: Cursor, cursor: Cursor) -> None:  # noqa: ARG002 - no other program moves it
        """Stores the place."""
        self.tracker.proceed(*self._key, _nothing, cursor)

    @property
    def _key(self) -> tuple[str, str, int]:
        return self.led.group, self.led.topic, self.led.partition


def _nothing() -> None:
    """The work of events that no handler is for."""
