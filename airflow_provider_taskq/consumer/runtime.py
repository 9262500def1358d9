"""Runtime of one consumer: its leases of partitions, and a loop for each of them."""

import logging
import threading
import time
from collections.abc import Callable

from airflow_provider_taskq.consumer.config import ConsumerConfig
from airflow_provider_taskq.consumer.partition_lease import PartitionLeases
from airflow_provider_taskq.consumer.partition_loop import PartitionLoop
from airflow_provider_taskq.queue import PartitionLease
from airflow_provider_taskq.queue.faults import classify, is_read_only
from airflow_provider_taskq.worker.connection import Connect
from airflow_provider_taskq.worker.notification_listener import NotificationListener

log = logging.getLogger(__name__)


class ConsumerRuntime:
    """Runtime of one consumer: its thread renews and acquires leases, starts loops, and releases partitions.

    `errors` has the errors that ended loops, by partition, and under -1 the error that ended the consumer.
    """

    def __init__(
        self,
        leases: PartitionLeases,
        connect: Connect,
        make_loop: Callable[[PartitionLease], PartitionLoop],
        config: ConsumerConfig,
    ) -> None:
        self.errors: dict[int, BaseException] = {}
        self.thread = threading.Thread(target=self._run, name="consumer", daemon=True)
        self._leases = leases
        self._make_loop = make_loop
        self._config = config
        self._notifications = NotificationListener(connect, "taskq", self._on_notification, self.wake)
        self._loops: list[PartitionLoop] = []
        self._interrupted: set[int] = set()
        self._generation = self._partitions = 0
        self._stopping = self._at_once = False
        self._changed = threading.Event()
        self._renewed = time.monotonic()

    @property
    def partitions(self) -> list[int]:
        """The partitions that the consumer holds now."""
        return sorted(loop.lease.partition for loop in list(self._loops))

    def start(self) -> None:
        """Start the threads."""
        self._notifications.start()
        self.thread.start()

    def stop(self, *, at_once: bool = False) -> None:
        """Let the consumer end after the current events, without waiting for the end.

        :param at_once: end before the current events, whose handlers may run on without an effect on the progress.
        """
        self._stopping, self._at_once = True, self._at_once or at_once
        self._stop_loops()
        self._changed.set()

    def wake(self) -> None:
        """Let all loops read now instead of after their pauses."""
        for loop in list(self._loops):
            loop.wake()

    def is_loop_thread(self) -> bool:
        """Return whether the caller is a handler in the thread of a loop."""
        return threading.current_thread() in [loop.thread for loop in list(self._loops)]

    def _run(self) -> None:
        try:
            while not self._stopping and not self._is_over():
                self._with_connection(self._renew_and_acquire)
                self._wait()
            self._stop_loops()
            while self._loops and not self._at_once:
                self._with_connection(self._renew)
                self._wait()
            self._with_connection(self._release_all)
        except BaseException as error:
            self.errors[-1] = error
            log.warning("consumer failed: group=%s topic=%s", self._leases.group, self._leases.topic, exc_info=error)
        finally:
            self._stop_loops()
            self._notifications.stop()
            self._leases.queue.conn.close()

    def _wait(self) -> None:
        """Wait until a loop ends, `stop` is called, or the leases are due."""
        if self._changed.wait(self._config.renewal_seconds):
            self._changed.clear()

    def _stop_loops(self) -> None:
        for loop in list(self._loops):
            loop.stop()

    def _with_connection(self, step: Callable[[], None]) -> None:
        """Run a step, over a new connection if the last one was lost. Stop the loops if their leases have lapsed."""
        try:
            if is_read_only(self._leases.queue.conn):
                self._leases.queue.conn.close()
            if self._leases.queue.conn.closed:
                self._leases.reconnect()
            step()
        except Exception as error:
            if not classify(error).is_temporary:
                raise
            named = (self._leases.group, self._leases.topic, type(error).__name__)
            log.warning("connection lost, will retry: group=%s topic=%s error=%s", *named)
            self._leases.queue.conn.close()
            if time.monotonic() - self._renewed > self._config.stored_lease.total_seconds():
                self._stop_loops()
            if self._stopping:
                self._loops = [loop for loop in self._loops if loop.thread.is_alive()]

    def _renew(self) -> None:
        """Renew the leases, stop loops without a lease, and release the partitions of loops that have ended."""
        began = time.monotonic()
        held = self._leases.renew()
        self._renewed = began
        for loop in list(self._loops):
            if loop.lease.fence not in held:
                loop.stop()
            if not loop.thread.is_alive():
                self._release(loop)

    def _renew_and_acquire(self) -> None:
        self._renew()
        limit = self._config.max_partitions
        while not self._stopping and (limit is None or len(self._loops) < limit):
            lease = self._leases.acquire([*self.errors, *self._interrupted, *self.partitions, *self._not_allowed()])
            if lease is None:
                return
            self._start_loop(lease)

    def _not_allowed(self) -> list[int]:
        """Return the partitions that `only_partitions` leaves to other consumers."""
        chosen = self._config.only_partitions
        return [] if chosen is None else [each for each in range(self._config.partitions) if each not in chosen]

    def _start_loop(self, lease: PartitionLease) -> None:
        if lease.generation != self._generation:
            # Another generation maps events to partitions in another way, so the errors no longer apply.
            self._generation, self.errors, self._interrupted = lease.generation, {}, set()
        self._partitions = lease.partitions
        named = (lease.group, lease.topic, lease.partition, lease.partitions)
        log.info("partition acquired: group=%s topic=%s partition=%s partitions=%s", *named)
        loop = self._make_loop(lease)
        loop.on_end = self._changed.set
        self._loops.append(loop)
        loop.thread.start()
        if self._stopping:
            loop.stop()

    def _release_all(self) -> None:
        for loop in list(self._loops):
            self._release(loop)

    def _release(self, loop: PartitionLoop) -> None:
        self._leases.release(loop.lease, loop.error)
        self._loops.remove(loop)
        if loop.lease.generation == self._generation:
            if loop.error is not None:
                self.errors[loop.lease.partition] = loop.error
                named = (self._leases.group, self._leases.topic, loop.lease.partition)
                log.error("partition failed: group=%s topic=%s partition=%s", *named, exc_info=loop.error)
            elif loop.interrupted:
                self._interrupted.add(loop.lease.partition)

    def _is_over(self) -> bool:
        """Return whether every partition that this consumer may hold has ended, by an error or an interruption."""
        ended = len(self.errors) + len(self._interrupted) + len(self._not_allowed())
        return not self._loops and 0 < self._partitions <= ended

    def _on_notification(self, topic: str) -> None:
        if topic == self._leases.topic:
            self.wake()
