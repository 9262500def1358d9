"""A consumer handles the events of a topic for one group, in the partitions that it holds."""

import os
import socket
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from types import MappingProxyType
from typing import Self
from uuid import uuid4

from airflow_provider_taskq.consumer.config import ConsumerConfig
from airflow_provider_taskq.consumer.group import ConsumerGroup, EventHandler
from airflow_provider_taskq.consumer.partition_lease import PartitionLeases, TrackedPartitionLeases
from airflow_provider_taskq.consumer.partition_loop import OnFailure, PartitionLoop
from airflow_provider_taskq.consumer.progress import DatabaseProgress, PartitionProgress, TrackedProgress
from airflow_provider_taskq.consumer.runtime import ConsumerRuntime
from airflow_provider_taskq.queue import InvalidArgument, PartitionLease, TaskQueueError, verify_for_work
from airflow_provider_taskq.queue.durations import to_timedelta
from airflow_provider_taskq.worker.connection import Connect, connect_limited, connection_factory
from airflow_provider_taskq.worker.signals import CHECK_SECONDS, StopSignals

_BUILT_IN = ConsumerConfig()


class Consumer:
    """Handles a topic's events with the handlers of a group, in all partitions that it can acquire.

        with Consumer(dsn, books, "library", ConsumerConfig(partitions=2)): ...

    Any number of programs may run consumers of one group. One of them at a time holds a partition, the others stand by.

    :param dsn: connection string of the queue's database, a function that connects to it, or None to read the
        environment, as `queue.connect` does.
    :param on_failure: a function that the thread of a partition calls with each failure of an event.
    :raises InvalidArgument: if the group has no handlers, or a handler needs the queue without `transactional=True`.
    """

    def __init__(
        self,
        dsn: str | Connect | None,
        group: ConsumerGroup,
        topic: str,
        config: ConsumerConfig = _BUILT_IN,
        *,
        on_failure: OnFailure | None = None,
    ) -> None:
        if not group.handlers:
            raise InvalidArgument(f"group {group.name!r} has no handlers")
        self.group, self.topic, self.config = group, topic, config
        self._handlers = self._supplied_handlers()
        self.member_id = f"{socket.gethostname()} {os.getpid()} {uuid4().hex[:8]}"
        self._connect = connection_factory(dsn, to_timedelta(config.lease))
        self._on_failure = on_failure or (lambda _: None)
        self._runtime: ConsumerRuntime | None = None
        self._hurried = False
        self._starting = threading.Lock()

    @property
    def is_running(self) -> bool:
        """Whether the consumer was started, and has not ended by `stop` or by an error in every partition."""
        return self._runtime is not None and self._runtime.thread.is_alive()

    @property
    def partitions(self) -> list[int]:
        """The partitions that the consumer holds now."""
        return self._runtime.partitions if self._runtime is not None else []

    @property
    def errors(self) -> dict[int, BaseException]:
        """The errors that ended partitions here, by partition, and under -1 the error that ended the consumer."""
        return dict(self._runtime.errors) if self._runtime is not None else {}

    def start(self) -> None:
        """Join the group and start.

        :raises TaskQueueError: if the consumer runs already.
        :raises SchemaMismatch: if the schema is missing in the database, or older than this package.
        """
        with self._starting:
            if self.is_running:
                raise TaskQueueError(f"the consumer of group {self.group.name!r} runs already")
            kind = PartitionLeases if self.config.progress is None else TrackedPartitionLeases
            leases = kind(self._connect, self.group.name, self.topic, self.member_id, self.config)
            try:
                verify_for_work(leases.queue.conn)
                leases.join()
            except BaseException:
                leases.queue.conn.close()
                raise
            self._runtime = ConsumerRuntime(leases, self._connect, self._make_loop, self.config)
            self._runtime.start()

    def stop(self, timeout: float | None = None) -> bool:
        """Stop after the current events, and release the partitions. Do not wait if a handler makes the call.

        :param timeout: in seconds; None for no limit.
        :return: False if the consumer still runs.
        """
        if self._runtime is None:
            return True
        self._runtime.stop()
        if not self._runtime.is_loop_thread():
            self._runtime.thread.join(timeout)
        return not self.is_running

    def resume(self) -> bool:
        """Let the consumer read now instead of after its pause. Return False if the consumer does not run."""
        if self._runtime is not None:
            self._runtime.wake()
        return self.is_running

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the consumer ends, and raise the error that ended it. Return False after `timeout` seconds."""
        if self._runtime is not None:
            self._runtime.thread.join(timeout)
        if self.is_running:
            return False
        for error in self.errors.values():
            raise error
        return True

    def run(self) -> None:
        """Run until SIGTERM or SIGINT, or until an error ends the consumer. Raises this error.

        The first signal waits for the current events. A second one ends the consumer at once: it releases the
        partitions, with their progress before the events whose handlers still run.
        """
        self._hurried = False
        with StopSignals(self.hurry) as signals:
            self.start()
            while not self.wait(CHECK_SECONDS):
                if signals.received and self._runtime is not None:
                    self._runtime.stop(at_once=self._hurried)

    def hurry(self) -> None:
        """End the wait of `run` for the current events. A signal handler may call this method."""
        self._hurried = True

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _supplied_handlers(self) -> list[EventHandler]:
        """Return the handlers of the group, which get what this consumer supplies."""
        supplied = [*["batch"] * (self.config.progress is None), *["queue"] * self.config.transactional]
        try:
            return self.group.handlers_with(supplied)
        except InvalidArgument as error:
            needs = "batch needs progress in the database, and queue transactional=True"
            raise InvalidArgument(f"{error}; {needs}") from None

    def _make_loop(self, lease: PartitionLease) -> PartitionLoop:
        limit, tracker = self.config.call_limit(), self.config.progress

        def connect() -> PartitionProgress:
            conn = connect_limited(self._connect, limit)
            if tracker is not None:
                return TrackedProgress(conn, lease, tracker)
            return DatabaseProgress(conn, lease, transactional=self.config.transactional)

        return PartitionLoop(lease, self._handlers, self.config, self.member_id, connect, self._on_failure)


class Consumers:
    """The consumers of a program, which start and stop together. `consumers` has them by group.

        standard = ConsumerConfig(transactional=True)
        consumers = Consumers(dsn, standard, {"books": replace(standard, partitions=2)})
        consumers.add(books, "library")
        consumers.start()

    :param standard: the settings of the groups that `groups` does not name.
    :param groups: all settings of single groups, by name.
    """

    def __init__(
        self,
        dsn: str | Connect | None,
        standard: ConsumerConfig = _BUILT_IN,
        groups: Mapping[str, ConsumerConfig] = MappingProxyType({}),
        on_failure: OnFailure | None = None,
    ) -> None:
        self.consumers: dict[str, Consumer] = {}
        self._dsn = dsn
        self._standard = standard
        self._groups = dict(groups)
        self._on_failure = on_failure

    def add(self, group: ConsumerGroup, topic: str) -> Consumer:
        """Create a consumer for a group, and return it. Raises InvalidArgument if the group has a consumer already."""
        if group.name in self.consumers:
            raise InvalidArgument(f"group {group.name!r} already has a consumer")
        config = self._groups.get(group.name, self._standard)
        consumer = Consumer(self._dsn, group, topic, config, on_failure=self._on_failure)
        self.consumers[group.name] = consumer
        return consumer

    def start(self) -> None:
        """Start the consumers with `auto_start`. If one of them cannot start, stop the others and raise the error.

        :raises InvalidArgument: if `groups` has settings for a group that was not added.
        """
        if unknown := sorted(set(self._groups) - set(self.consumers)):
            raise InvalidArgument(f"groups has settings for groups that were not added: {', '.join(unknown)}")
        with ExitStack() as started:
            for consumer in self.consumers.values():
                if consumer.config.auto_start:
                    consumer.start()
                    started.callback(consumer.stop)
            started.pop_all()

    def stop(self, timeout: float | None = None) -> bool:
        """Stop all consumers. Return False if one of them still runs.

        :param timeout: the seconds to wait for each consumer; None for no limit.
        """
        for consumer in self.consumers.values():
            consumer.stop(0)  # lets all of them end at the same time
        return min((consumer.stop(timeout) for consumer in self.consumers.values()), default=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
