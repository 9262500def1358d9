"""A consumer handles the events of a topic for one group, in the partitions that it holds."""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from uuid import uuid4

from airflow_provider_taskq.consumer.config import BUILT_IN, ConsumerConfig
from airflow_provider_taskq.consumer.group import ConsumerGroup, EventHandler, Interrupted
from airflow_provider_taskq.consumer.partition_lease import PartitionLeases, TrackedPartitionLeases
from airflow_provider_taskq.consumer.partition_loop import OnFailure, PartitionLoop
from airflow_provider_taskq.queue import (
    InvalidArgument,
    InvalidState,
    PartitionLease,
    TaskQueue,
    TaskQueueError,
    verify_for_work,
)
from airflow_provider_taskq.queue.arguments import DurationLike, to_seconds
from airflow_provider_taskq.queue.faults import classify
from airflow_provider_taskq.queue.session import Connect, connect_limited, connection_factory
from airflow_provider_taskq.worker.executors import Threads
from airflow_provider_taskq.worker.services import CHECK_SECONDS, NotificationListener, ServiceThread, StopSignals

log = logging.getLogger(__name__)


class Consumer(ServiceThread):
    """Handles a topic's events with the handlers of a group, in all partitions that it can acquire.

        with Consumer(dsn, books, "library", ConsumerConfig(partitions=2)): ...

    Any number of programs may run consumers of one group. One of them at a time holds a partition, the others stand by.
    `errors` has the errors that ended partitions here, by partition, and under -1 the error that ended the consumer.

    :param dsn: connection string of the queue's database, a function that connects to it, or None to read the
        environment, as `queue.connect` does.
    :param on_failure: a function that the thread of a partition calls with each failure of an event.
    :raises InvalidArgument: if the group has no handlers, or a handler needs the queue without `transactional=True`.
    """

    _leases: PartitionLeases  # of the last start
    _notifications: NotificationListener

    def __init__(
        self,
        dsn: str | Connect | None,
        group: ConsumerGroup,
        topic: str,
        config: ConsumerConfig = BUILT_IN,
        *,
        on_failure: OnFailure | None = None,
    ) -> None:
        super().__init__(f"the consumer of group {group.name!r}")
        if not group.handlers:
            raise InvalidArgument(f"group {group.name!r} has no handlers")
        self.group, self.topic, self.config = group, topic, config
        self.member_id = f"{socket.gethostname()} {os.getpid()} {uuid4().hex[:8]}"
        self.errors: dict[int, BaseException] = {}
        self._handlers = self._supplied_handlers()
        self._connect = connection_factory(dsn, config.lease)
        self._on_failure = on_failure or (lambda _: None)
        self._loops: list[PartitionLoop] = []
        self._hurried = False
        self._changed = threading.Event()
        self._starting = threading.Lock()

    @property
    def partitions(self) -> list[int]:
        """The partitions that the consumer holds now."""
        return sorted(loop.lease.partition for loop in list(self._loops))

    def start(self) -> None:
        """Start. While programs with another division hold partitions of the group, wait for them to stop.

        :raises TaskQueueError: if the consumer runs already.
        :raises UnknownTopic: if the topic does not exist.
        :raises InvalidArgument: if `level` is a function that returns something else than a text or a partition.
        :raises SchemaMismatch: if the schema is missing in the database, or older than this package.
        """
        with self._starting:
            if self.is_running:
                raise TaskQueueError(f"{self._service_name} runs already")
            kind = PartitionLeases if self.config.progress is None else TrackedPartitionLeases
            leases = kind(self._connect, self.group.name, self.topic, self.member_id, self.config)
            try:
                with leases.session.queue() as queue:
                    verify_for_work(queue.conn)
                    self._check_level(queue)
            except BaseException:
                leases.session.close()
                raise
            self._leases, self._renewed = leases, time.monotonic()
            self.errors, self._loops = {}, []
            self._threads = Threads(self.config.partitions, f"consumer {self.group.name} {self.topic}")
            self._ended: set[int] = set()  # partitions that this consumer does not acquire again
            self._refusal, self._refused_until = "", 0.0
            self._notifications = NotificationListener(self._connect, "taskq", self._on_notification, self._wake_loops)
            self._notifications.start()
            super().start()

    def _check_level(self, queue: TaskQueue) -> None:
        """Map the first event of the topic to its partition. Raises InvalidArgument for a result of another type."""
        for _, event in queue.events(self.topic, None, 1):
            try:
                self.config.partition(event)
            except InvalidArgument:
                raise
            except Exception as error:  # noqa: BLE001 -- a failure of this event, which its loop handles
                log.debug("level failed: topic=%s sequence=%s error=%s", self.topic, event.sequence, error)

    def stop(self, timeout: DurationLike | None = None) -> bool:
        """Stop after the current events, and release the partitions. Do not wait if a handler makes the call.

        :param timeout: None for no limit.
        :return: False if the consumer still runs.
        """
        self._stopped.set()
        self._stop_loops()
        self._changed.set()
        is_handler = threading.current_thread() in [loop.thread for loop in list(self._loops)]
        return super().stop(0 if is_handler else timeout)

    def resume(self) -> bool:
        """Let the consumer read now instead of after its pause, or try now what it waits for.

        Return False if the consumer does not run.
        """
        self._refused_until = 0.0
        self._changed.set()
        self._wake_loops()
        return self.is_running

    def wait(self, timeout: DurationLike | None = None) -> bool:
        """Wait until the consumer ends, and raise the error that ended it. Return False after `timeout`."""
        seconds = to_seconds(timeout)
        if self._thread is not None:
            self._thread.join(seconds)
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
                if signals.received:
                    self.stop(0)

    def hurry(self) -> None:
        """End the wait of `run` for the current events. A signal handler may call this method."""
        self._hurried = True

    def _supplied_handlers(self) -> list[EventHandler]:
        """Return the handlers of the group, which get what this consumer supplies."""
        supplied = [*["batch"] * (self.config.progress is None), *["queue"] * self.config.transactional]
        try:
            return self.group.handlers_with(supplied)
        except InvalidArgument as error:
            needs = "batch needs progress in the database, and queue transactional=True"
            raise InvalidArgument(f"{error}; {needs}") from None

    def _run(self) -> None:
        try:
            while not self._stopped.is_set() and not self._is_over():
                self._attempt(self._renew_and_acquire)
                self._wait()
            self._stop_loops()
            while self._loops and not self._hurried:
                self._attempt(self._renew)
                self._wait()
            for loop in list(self._loops):
                self._attempt(partial(self._release, loop))
            self._attempt(self._leases.end)
        except BaseException as error:
            self.errors[-1] = error
            log.warning("consumer failed: group=%s topic=%s", self.group.name, self.topic, exc_info=error)
        finally:
            self._stop_loops()
            self._notifications.stop()
            self._leases.session.close()

    def _wait(self) -> None:
        """Wait until a loop ends, `stop` is called, or the leases are due."""
        if self._changed.wait(self.config.renewal_seconds):
            self._changed.clear()

    def _stop_loops(self) -> None:
        for loop in list(self._loops):
            loop.stop()

    def _attempt(self, step: Callable[[], None]) -> None:
        """Run a step, which the next one repeats if the connection is lost. Stop the loops if the lease has lapsed."""
        try:
            step()
        except Exception as error:
            if not classify(error).is_temporary:
                raise
            named = (self.group.name, self.topic, type(error).__name__)
            log.warning("connection lost, will retry: group=%s topic=%s error=%s", *named)
            if time.monotonic() - self._renewed > self.config.stored_lease.total_seconds():
                self._stop_loops()
            if self._stopped.is_set():
                self._loops = [loop for loop in self._loops if not loop.ended.done()]

    def _renew(self) -> None:
        """Renew the lease, stop the loops if it had lapsed, and release the partitions of loops that have ended."""
        began = time.monotonic()
        if not self._leases.renew():
            self._stop_loops()
        self._renewed = began
        for loop in list(self._loops):
            if loop.ended.done():
                self._release(loop)

    def _renew_and_acquire(self) -> None:
        self._renew()
        if time.monotonic() < self._refused_until:
            return
        limit = self.config.max_partitions
        while not self._stopped.is_set() and (limit is None or len(self._loops) < limit):
            try:
                lease = self._leases.acquire([*self._ended, *self.partitions, *self._not_allowed()])
            except InvalidState as error:
                # Each try is an error in the server's log.
                self._refused_until = time.monotonic() + self.config.lease.total_seconds() / 2
                if str(error) != self._refusal:
                    self._refusal = str(error)
                    log.warning("consumer waits: group=%s topic=%s reason=%s", self.group.name, self.topic, error)
                return
            if lease is None:
                return
            self._start_loop(lease)

    def _not_allowed(self) -> list[int]:
        """Return the partitions that `only_partitions` leaves to other consumers."""
        chosen = self.config.only_partitions
        return [] if chosen is None else [each for each in range(self.config.partitions) if each not in chosen]

    def _start_loop(self, lease: PartitionLease) -> None:
        named = (lease.group, lease.topic, lease.partition, self.config.partitions)
        log.info("partition acquired: group=%s topic=%s partition=%s partitions=%s", *named)
        connect = partial(connect_limited, self._connect, self.config.call_limit())
        loop = PartitionLoop(lease, self._handlers, self.config, self.member_id, connect, self._on_failure)
        loop.ended = self._threads.run(loop.run)
        loop.ended.add_done_callback(lambda _: self._changed.set())
        self._loops.append(loop)
        if self._stopped.is_set():
            loop.stop()

    def _release(self, loop: PartitionLoop) -> None:
        ended_by = loop.ended.exception() if loop.ended.done() else None
        error = None if isinstance(ended_by, Interrupted | SystemExit | KeyboardInterrupt) else ended_by
        self._leases.release(loop.lease, error)
        self._loops.remove(loop)
        if ended_by is not None:
            self._ended.add(loop.lease.partition)
        if error is not None:
            self.errors[loop.lease.partition] = error
            named = (self.group.name, self.topic, loop.lease.partition)
            log.error("partition failed: group=%s topic=%s partition=%s", *named, exc_info=error)

    def _is_over(self) -> bool:
        """Return whether every partition that this consumer may hold has ended, by an error or an interruption."""
        may_hold = self.config.partitions - len(self._not_allowed())
        return not self._loops and 0 < may_hold <= len(self._ended)

    def _on_notification(self, topic: str) -> None:
        if topic == self.topic:
            self._wake_loops()

    def _wake_loops(self) -> None:
        for loop in list(self._loops):
            loop.wake()
