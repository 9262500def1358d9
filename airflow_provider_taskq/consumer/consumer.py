"""The reader: one program's part in a group that handles a topic's log."""

import os
import socket
import threading
from types import TracebackType
from typing import Self
from uuid import uuid4

import psycopg

from airflow_provider_taskq.consumer.config import ConsumerConfig, Exclusivity, Progress
from airflow_provider_taskq.consumer.errors import AlreadyRunning
from airflow_provider_taskq.consumer.group import ConsumerGroup
from airflow_provider_taskq.consumer.partition_lease import (
    FencedPartitionLeases,
    LockedPartitionLeases,
    PartitionLeases,
    SharedPartitions,
    stored,
)
from airflow_provider_taskq.consumer.partition_loop import EventFailure, OnFailure, PartitionLoop
from airflow_provider_taskq.consumer.progress import (
    DatabaseProgress,
    MemoryTracker,
    PartitionProgress,
    ProgressTracker,
    TrackedProgress,
)
from airflow_provider_taskq.consumer.runtime import ConsumerRuntime
from airflow_provider_taskq.consumer.signals import on_signals
from airflow_provider_taskq.queue import InvalidArgument, PartitionLease
from airflow_provider_taskq.queue.connection import CallLimit
from airflow_provider_taskq.worker.connection import Connect, connect_limited, connection_factory, heartbeat_limit

BUILT_IN = ConsumerConfig()


class Consumer:
    """Handles a topic's events by a group's handlers, as the leader of as many partitions as it gets.

        with Reader(dsn, books, "library", Settings(partitions=2)): ...

    Any number of programs may run readers of one group: each partition is led by one of them at a time, the others are
    spares. `dsn`: a connection string, a function that connects, or None: as the environment says. `on_failure` is
    called by the loop that met a failure.
    """

    def __init__(
        self,
        dsn: str | Connect | None,
        group: ConsumerGroup,
        topic: str,
        settings: ConsumerConfig = BUILT_IN,
        *,
        on_failure: OnFailure | None = None,
    ) -> None:
        if not group.handlers:
            raise InvalidArgument(f"group {group.name!r} has no handlers")
        if not settings.transactional and any(handler.in_transaction for handler in group.handlers):
            raise InvalidArgument(
                f"group {group.name!r}: a handler takes the queue of the transaction, which takes transactional=True"
            )
        self.group, self.topic, self.settings = group, topic, settings
        self.leader = f"{socket.gethostname()} {os.getpid()} {uuid4().hex[:8]}"
        self._connects = connection_factory(dsn, settings.lease)
        self._on_failure = on_failure or _ignore
        self._memory = MemoryTracker()
        self._part: ConsumerRuntime | None = None
        self._starting = threading.Lock()

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended: stopped, or with an error in every partition."""
        return self._part is not None and self._part.thread.is_alive()

    @property
    def partitions(self) -> list[int]:
        """The partitions that this reader leads now."""
        return self._part.partitions if self._part is not None else []

    @property
    def errors(self) -> dict[int, BaseException]:
        """The errors that ended loops here, by partition; -1 for one that ended the whole reader."""
        return dict(self._part.errors) if self._part is not None else {}

    def start(self) -> None:
        """Joins the group, and returns once that is done; AlreadyRunning where it runs."""
        with self._starting:
            if self.is_running:
                raise AlreadyRunning(f"the reader of group {self.group.name!r} runs already")
            conn = self._connected()
            try:
                leading = self._leading(conn)
                leading.join()
            except BaseException:
                conn.close()
                raise
            self._part = ConsumerRuntime(leading, self._connected, self._loop, self.settings)
            self._part.thread.start()

    def stop(self, timeout: float | None = None) -> bool:
        """Ends after the events at hand, gives partitions back, and tells whether that was done in time.

        Of a reader that does not run: True, and nothing happens. A handler may call it, and is not waited for.
        """
        if self._part is None:
            return True
        self._part.halt()
        if not self._part.is_own_thread():
            self._part.thread.join(timeout)
        return not self.is_running

    def resume(self) -> bool:
        """Looks at the log at once, instead of after the pause; False where it does not run."""
        if self._part is not None:
            self._part.wake()
        return self.is_running

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the reader has ended, and raises the error that ended it; False where the time is over."""
        if self._part is not None:
            self._part.thread.join(timeout)
        if self.is_running:
            return False
        for error in self.errors.values():
            raise error
        return True

    def run(self) -> None:
        """Reads until SIGTERM or SIGINT, or raises the error that ended it."""
        self.start()
        part = self._part
        with on_signals(lambda: part.halt() if part is not None else None):
            while not self.wait(1):
                pass

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _connected(self) -> psycopg.Connection:
        """A connection to keep leases by."""
        return connect_limited(self._connects, heartbeat_limit(stored(self.settings.lease).total_seconds()))

    def _leading(self, conn: psycopg.Connection) -> PartitionLeases:
        """How this reader gets partitions."""
        kind: type[FencedPartitionLeases | LockedPartitionLeases] = FencedPartitionLeases
        if self.settings.progress != Progress.DATABASE:
            kind = LockedPartitionLeases if self.settings.exclusivity == Exclusivity.LEASE else SharedPartitions
        return kind(conn, self.group.name, self.topic, self.leader, self.settings)

    def _loop(self, led: PartitionLease) -> PartitionLoop:
        """A loop for a partition, not yet started."""
        limit = self.settings.call_limit()
        return PartitionLoop(led, self.group, self.settings, lambda: self._progress(led, limit), self._on_failure)

    def _progress(self, led: PartitionLease, limit: CallLimit) -> PartitionProgress:
        """Progress of a partition over a connection of its own."""
        conn = connect_limited(self._connects, limit)
        tracker = self._memory if self.settings.progress == Progress.MEMORY else self.settings.progress
        if isinstance(tracker, ProgressTracker):
            return TrackedProgress(conn, led, tracker)
        return DatabaseProgress(conn, led, limit, transactional=self.settings.transactional)


def _ignore(failure: EventFailure) -> None:
    """Nobody listens."""
