"""The progress of one partition: in the database under the fence of its lease, or in a tracker."""

from collections.abc import Callable

import psycopg

from airflow_provider_taskq.consumer.config import ConsumerConfig
from airflow_provider_taskq.queue import Cursor, PartitionBatch, PartitionLease, TaskQueue
from airflow_provider_taskq.queue.faults import Fault, classify
from airflow_provider_taskq.worker.handlers import HandlerFailed

ProgressCall = Callable[[TaskQueue | None], None]


class ProgressMoved(Exception):
    """Another program has changed the progress. The loop reads again, from the changed progress."""


class Progress:
    """Reads the events of a partition after its progress, and stores the progress, where the config says."""

    def __init__(self, conn: psycopg.Connection, lease: PartitionLease, config: ConsumerConfig) -> None:
        self.conn, self.queue = conn, TaskQueue(conn)
        self.lease, self._config = lease, config
        self._key = lease.group, lease.topic, lease.partition

    def read(self, size: int) -> PartitionBatch:
        """Read the next events after the progress: of the partition, or all if a function maps them to partitions."""
        config, lease = self._config, self.lease
        if config.progress is None:
            return self.queue.read_partition(lease, size)
        after = config.progress.current(*self._key) or Cursor(0)
        if callable(config.level):
            found = self.queue.events(lease.topic, after, size)
        else:
            division = {"partition": lease.partition, "partitions": config.partitions}
            found = self.queue.events(lease.topic, after, size, **division, level=config.level)
        return PartitionBatch(found, found.cursor, after)

    def proceed(self, call: ProgressCall, after: Cursor, cursor: Cursor) -> None:
        """Run the call that handles events, then store progress. Store nothing if the call raises.

        If the config says `transactional`, both happen in one transaction.
        """
        if self._config.progress is not None:
            self._config.progress.proceed(*self._key, lambda: call(None), cursor)
        elif not self._config.transactional:
            call(None)
            self.skip(after, cursor)
        else:
            self._proceed_in_transaction(call, after, cursor)

    def _proceed_in_transaction(self, call: ProgressCall, after: Cursor, cursor: Cursor) -> None:
        try:
            with self.conn.transaction():
                call(self.queue)
                self.skip(after, cursor)
        except psycopg.Error as error:
            if classify(error) is not Fault.INVALID:  # as of a deferred constraint, at the commit
                raise
            raise HandlerFailed from error

    def skip(self, after: Cursor, cursor: Cursor, error: BaseException | None = None) -> None:
        """Store progress past events without a call, and in the database the error that skips the last one.

        Raises ProgressMoved if the progress in the database is not at `after` any more.
        """
        if self._config.progress is not None:
            self._config.progress.proceed(*self._key, lambda: None, cursor)
        elif not self.queue.advance_partition(self.lease, after, cursor, error):
            raise ProgressMoved
