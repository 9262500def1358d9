"""Progress of one partition: in the database, under the leader's fence, or in memory."""

from collections.abc import Callable
from typing import Protocol

import psycopg
from psycopg.pq import TransactionStatus

from airflow_provider_taskq.processing.reader.errors import HandlerFailed
from airflow_provider_taskq.queue import Cursor, Handed, Led, TaskQueue
from airflow_provider_taskq.queue.deadline import CallLimit

Work = Callable[[TaskQueue | None], None]


class Moved(Exception):
    """Somebody has put progress elsewhere: read anew, from there."""


class PartitionProgress(Protocol):
    """What a loop needs to know of how progress is kept."""

    conn: psycopg.Connection

    def read(self, size: int) -> Handed:
        """The next events after progress."""

    def proceed(self, work: Work, after: Cursor, cursor: Cursor) -> None:
        """Does the work of an event, and then stores progress; of work that raises none is."""

    def skip(self, after: Cursor, cursor: Cursor) -> None:
        """Stores progress past events that nothing is done about."""


class DatabaseProgress:
    """Progress in the database, stored only as long as we lead; with the handler's own rows if `transactional`."""

    def __init__(self, conn: psycopg.Connection, led: Led, limit: CallLimit, *, transactional: bool) -> None:
        self.conn = conn
        self.queue = TaskQueue(conn)
        self.led = led
        self.limit = limit
        self.transactional = transactional

    def read(self, size: int) -> Handed:
        """The next events after the progress that is stored."""
        return self.queue.read_led(self.led, size)

    def proceed(self, work: Work, after: Cursor, cursor: Cursor) -> None:
        """Work and progress in one transaction, or one after the other."""
        if not self.transactional:
            work(None)
            self.skip(after, cursor)
            return
        try:
            with self.conn.transaction():
                with self.limit.for_handler_statements():
                    work(self.queue)
                if self.conn.info.transaction_status == TransactionStatus.INERROR:
                    raise HandlerFailed("a handler went on after a statement had failed, which undid its transaction")
                self.skip(after, cursor)
        except psycopg.IntegrityError as error:  # of a deferred constraint, at the commit
            raise HandlerFailed from error

    def skip(self, after: Cursor, cursor: Cursor) -> None:
        """Stores progress; Moved where it is not at `after` any more."""
        if not self.queue.advance_led(self.led, after, cursor):
            raise Moved


class MemoryProgress:
    """Progress in this program's memory, `places` by partition: whoever begins begins with the first event."""

    def __init__(self, conn: psycopg.Connection, led: Led, places: dict[int, Cursor]) -> None:
        self.conn = conn
        self.queue = TaskQueue(conn)
        self.led = led
        self.places = places

    def read(self, size: int) -> Handed:
        """The next events of the partition after the place in memory."""
        led, after = self.led, self.places.get(self.led.partition, Cursor(0))
        found = self.queue.events(
            led.topic, after, size, partition=led.partition, partitions=led.partitions, level=led.level
        )
        return Handed(found, found.cursor if len(found) < size else found[-1][0], after, at_end=False)

    def proceed(self, work: Work, after: Cursor, cursor: Cursor) -> None:
        """The work, and then the place."""
        work(None)
        self.skip(after, cursor)

    def skip(self, after: Cursor, cursor: Cursor) -> None:  # noqa: ARG002 - nobody else moves it
        """Keeps the place."""
        self.places[self.led.partition] = cursor
