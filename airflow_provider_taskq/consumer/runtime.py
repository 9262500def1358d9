"""A reader's part in its group while it runs: leases kept, loops begun and ended, partitions given back."""

import logging
import threading
import time
from collections.abc import Callable

import psycopg

from airflow_provider_taskq.consumer.config import ConsumerConfig
from airflow_provider_taskq.consumer.partition_lease import PartitionLeases, interval, stored
from airflow_provider_taskq.consumer.partition_loop import PartitionLoop, is_transient
from airflow_provider_taskq.queue import PartitionLease, TaskQueue
from airflow_provider_taskq.queue.errors import is_read_only

logger = logging.getLogger(__name__)

SLICE = 0.1  # seconds between two looks at what the server tells


class ConsumerRuntime:
    """Runs in a thread of its own, with a connection of its own, from one start of a reader to its end."""

    def __init__(
        self,
        leading: PartitionLeases,
        connect: Callable[[], psycopg.Connection],
        make_loop: Callable[[PartitionLease], PartitionLoop],
        settings: ConsumerConfig,
    ) -> None:
        self.errors: dict[int, BaseException] = {}
        self.thread = threading.Thread(target=self._run, name="reader", daemon=True)
        self._leading = leading
        self._connect = connect
        self._make_loop = make_loop
        self._settings = settings
        self._loops: list[PartitionLoop] = []
        self._interrupted: set[int] = set()
        self._generation = self._partitions = 0
        self._stopping = False
        self._bell = threading.Event()
        self._kept = time.monotonic()

    @property
    def partitions(self) -> list[int]:
        """The partitions that are led now."""
        return sorted(loop.led.partition for loop in list(self._loops))

    def halt(self) -> None:
        """Asks for the end."""
        self._stopping = True
        self._halt_loops()
        self._bell.set()

    def wake(self) -> None:
        """Ends the pauses of all loops."""
        for loop in list(self._loops):
            loop.wake()

    def is_own_thread(self) -> bool:
        """Whether whoever asks is run by one of the loops, which would wait for itself."""
        return threading.current_thread() in [loop.thread for loop in list(self._loops)]

    def _run(self) -> None:
        """Leads until asked to end, or until handlers have ended every partition."""
        try:
            self._try_to(self._listen)
            while not self._stopping and not self._is_over():
                self._try_to(self._look_after)
                self._pause()
            self._halt_loops()
            while self._loops:
                self._try_to(self._keep)
                self._pause()
        except BaseException as error:
            self.errors[-1] = error
            logger.warning("the reader ends", exc_info=error)
        finally:
            self._halt_loops()
            self._leading.queue.conn.close()

    def _halt_loops(self) -> None:
        for loop in list(self._loops):
            loop.halt()

    def _listen(self) -> None:
        """Lets the server tell when somebody says that there are new tasks."""
        self._leading.queue.conn.execute("LISTEN taskq")

    def _try_to(self, act: Callable[[], None]) -> None:
        """Does it, over another connection where one is lost. What is not kept for a lease is not ours by then."""
        try:
            if is_read_only(self._leading.queue.conn):
                self._leading.queue.conn.close()
            if self._leading.queue.conn.closed:
                self._leading.queue = TaskQueue(self._connect())
                self._listen()
            act()
        except Exception as error:
            if not is_transient(error):
                raise
            logger.warning("the reader has lost its connection (%s) and tries again", type(error).__name__)
            self._leading.queue.conn.close()
            if time.monotonic() - self._kept > stored(self._settings.lease).total_seconds():
                self._halt_loops()
            if self._stopping:
                self._loops = [loop for loop in self._loops if loop.thread.is_alive()]

    def _keep(self) -> None:
        """Keeps what we lead, and lets go what has ended."""
        begun = time.monotonic()
        kept = self._leading.keep()
        self._kept = begun
        for loop in list(self._loops):
            if loop.led.fence not in kept:
                loop.halt()
            if not loop.thread.is_alive():
                self._let_go(loop)

    def _look_after(self) -> None:
        """The same, and takes what is free."""
        self._keep()
        most = self._settings.max_partitions
        while not self._stopping and (most is None or len(self._loops) < most):
            led = self._leading.lead([*self.errors, *self._interrupted, *self.partitions, *self._of_others()])
            if led is None:
                return
            self._begin(led)

    def _of_others(self) -> list[int]:
        """The partitions that the settings leave to other programs."""
        chosen = self._settings.chosen
        return [] if chosen is None else [each for each in range(self._settings.partitions) if each not in chosen]

    def _begin(self, led: PartitionLease) -> None:
        """Starts the loop of a partition. Errors are forgotten where it is of another generation."""
        if led.generation != self._generation:
            self._generation, self.errors, self._interrupted = led.generation, {}, set()
        self._partitions = led.partitions
        logger.info("group %s leads partition %s of %s of %s", led.group, led.partition, led.partitions, led.topic)
        loop = self._make_loop(led)
        loop.on_end = self._bell.set
        self._loops.append(loop)
        loop.thread.start()
        if self._stopping:
            loop.halt()

    def _let_go(self, loop: PartitionLoop) -> None:
        """Gives back the partition of a loop that has ended, with its error if there is one."""
        self._leading.give_back(loop.led, loop.error)
        self._loops.remove(loop)
        if loop.led.generation == self._generation:
            if loop.error is not None:
                self.errors[loop.led.partition] = loop.error
            elif loop.interrupted:
                self._interrupted.add(loop.led.partition)

    def _is_over(self) -> bool:
        """Whether every partition has been ended here by its handlers, by an error or an interruption."""
        ended = len(self.errors) + len(self._interrupted) + len(self._of_others())
        return not self._loops and 0 < self._partitions <= ended

    def _pause(self) -> None:
        """Waits until a loop ends, we are to end, or it is time; meanwhile hears of new tasks."""
        deadline = time.monotonic() + interval(self._settings.lease)
        while (left := deadline - time.monotonic()) > 0:
            if self._bell.wait(min(left, SLICE)):
                self._bell.clear()
                return
            self._hear()

    def _hear(self) -> None:
        """Wakes the loops if the server has told of new tasks."""
        try:
            told = [each.payload for each in self._leading.queue.conn.notifies(timeout=0)]
            if self._leading.topic in told:
                self.wake()
        except psycopg.Error:
            self._leading.queue.conn.close()
