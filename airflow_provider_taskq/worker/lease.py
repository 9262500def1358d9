"""Leases of owners with their batches, and the threads that extend leases and expire those of dead workers."""

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import psycopg

from airflow_provider_taskq.queue import LeaseLost, Owner, TaskQueueError
from airflow_provider_taskq.queue.backoff import Backoff
from airflow_provider_taskq.queue.connection import CallLimit
from airflow_provider_taskq.worker.batches import Batch
from airflow_provider_taskq.worker.connection import Connect, DatabaseSession, Disconnected, heartbeat_limit
from airflow_provider_taskq.worker.limiter import Token
from airflow_provider_taskq.worker.threads import ServiceThread

log = logging.getLogger(__name__)

_LONGEST_RETRY_PAUSE = 5.0


class BatchThread(Protocol):
    """A thread that handles batches and can be replaced when a handler is stuck in it."""

    def replace(self, stuck: "InFlightBatch", fail: bool) -> None:
        """Starts another thread in place of this one. With `fail` the new thread commits FAILURE for the batch."""


class InFlightBatch:
    """A polled batch until its end. The first thread that claims it decides its end."""

    def __init__(self, batch: Batch, lease: "Lease", token: Token, trace: Any = None) -> None:
        self.batch = batch
        self.lease = lease
        self.token = token
        self.trace = trace
        self.thread: BatchThread | None = None  # that runs the handler
        self.abandoned_for: BaseException | None = None
        self._claimed = threading.Lock()

    def claim(self) -> bool:
        """Returns True for the first caller only."""
        return self._claimed.acquire(blocking=False)

    def abandon(self, reason: BaseException) -> bool:
        """Takes the batch away from its handler, whose decisions are then ignored. False if the handler was faster."""
        if not self.claim():
            return False
        self.abandoned_for = reason
        self.batch.cancel()
        return True

    def describe(self) -> str:
        """Names the batch by its tasks, for logs."""
        tasks = self.batch.tasks
        shown = ",".join(str(task.sequence) for task in tasks[:5]) + (",..." if len(tasks) > 5 else "")
        return f"topic={tasks[0].topic} tasks={len(tasks)} sequences={shown}"


class Lease:
    """The lease of one owner, and the batches that are held under it. A lost lease stays lost.

    :param since: when the registration began, by `time.monotonic()`; None for now. The lease has run since then.
    :param on_abandon: called for each batch that the lease takes away from its handler.
    :param lost_after: seconds without a heartbeat after which the lease counts as lost; None for its length.
    """

    def __init__(
        self,
        owner: Owner,
        since: float | None = None,
        *,
        on_abandon: Callable[[InFlightBatch], None] = lambda _: None,
        lost_after: float | None = None,
    ) -> None:
        self.owner = owner
        self.lost: LeaseLost | None = None
        self.extended_at = time.monotonic() if since is None else since
        self._on_abandon = on_abandon
        self._lost_after = owner.lease.total_seconds() if lost_after is None else lost_after
        self._batches: dict[int, InFlightBatch] = {}
        self._lock = threading.Lock()

    @property
    def batches(self) -> list[InFlightBatch]:
        """The batches that are held now."""
        with self._lock:
            return list(self._batches.values())

    def add(self, batch: InFlightBatch) -> None:
        """Adds a batch. The batch is abandoned at once if the lease is lost already."""
        with self._lock:
            self._batches[id(batch)] = batch
            lost = self.lost
        if lost is not None:
            self.abandon(batch, lost)

    def remove(self, batch: InFlightBatch) -> None:
        """Removes a batch that has ended."""
        with self._lock:
            self._batches.pop(id(batch), None)

    def abandon(self, batch: InFlightBatch, reason: BaseException) -> bool:
        """Takes a batch away from its handler. False if the handler was faster."""
        if not batch.abandon(reason):
            return False
        self._on_abandon(batch)
        return True

    def lose(self, error: LeaseLost) -> bool:
        """Marks the lease as lost and abandons its batches. False if it was lost before."""
        with self._lock:
            if self.lost is not None:
                return False
            self.lost = error
        for batch in self.batches:
            self.abandon(batch, error)
        return True

    def seconds_left(self) -> float:
        """Seconds until the lease counts as lost, by this machine's monotonic clock."""
        return self.extended_at + self._lost_after - time.monotonic()

    def overdue(self) -> LeaseLost | None:
        """The loss, if no heartbeat reached the queue in time. The queue may have kept the lease all the same."""
        if self.seconds_left() > 0:
            return None
        return LeaseLost(
            f"no heartbeat of owner {self.owner.name!r} reached the queue for {self._lost_after:.1f} seconds of its "
            f"lease of {self.owner.lease.total_seconds():g} seconds"
        )


class LeaseKeeper(ServiceThread):
    """Extends leases every third of their length, in a thread with a connection of its own.

    A lease is lost when the queue says so, or when `check_clock` finds it overdue. A lost lease is removed, its
    batches are abandoned, and `on_loss` is called.

    :param length: of the leases, in seconds.
    :param limit: of a heartbeat's call; by default a quarter of the lease.
    """

    def __init__(
        self, connect: Connect, length: float, on_loss: Callable[[LeaseLost], None], limit: CallLimit | None = None
    ) -> None:
        self._session = DatabaseSession(connect, limit or heartbeat_limit(length))
        self._interval = length / 3
        self._on_loss = on_loss
        self._leases: dict[int, Lease] = {}
        # Leases that are lost by this machine's clock only. The worker must not expire them itself.
        self._unreachable: dict[int, Lease] = {}
        self._lock = threading.Lock()
        super().__init__("taskq lease")

    @property
    def leases(self) -> list[Lease]:
        """The leases that are kept."""
        with self._lock:
            return list(self._leases.values())

    @property
    def owner_names(self) -> list[str]:
        """The owners whose leases are kept, or were lost only because the database cannot be reached."""
        with self._lock:
            return list({lease.owner.name for lease in (*self._leases.values(), *self._unreachable.values())})

    def add(self, lease: Lease) -> None:
        """Keeps a lease from now on."""
        with self._lock:
            self._leases[id(lease)] = lease

    def remove(self, lease: Lease) -> None:
        """Stops to keep a lease."""
        with self._lock:
            self._leases.pop(id(lease), None)

    def lose(self, lease: Lease, error: LeaseLost) -> None:
        """Removes a lease that is lost, and abandons its batches."""
        self.remove(lease)
        if lease.lose(error):
            self._on_loss(error)

    def check_clock(self) -> None:
        """Loses the leases that are overdue. Touches no network, since a heartbeat may be stuck in it."""
        for lease in self.leases:
            if (error := lease.overdue()) is not None:
                with self._lock:
                    self._unreachable[id(lease)] = lease
                self.lose(lease, error)

    def release(self, session: DatabaseSession, lease: Lease) -> bool:
        """Releases a lease and its tasks. False if the database cannot be reached; the lease then lapses."""
        self.remove(lease)
        try:
            with session.queue() as queue:
                queue.release(lease.owner)
        except (TaskQueueError, psycopg.Error) as error:
            log.warning("lease not released, it will lapse: owner=%s error=%s", lease.owner.name, error)
            return not isinstance(error, Disconnected)
        return True

    def _run(self) -> None:
        longest = max(0.1, min(self._interval / 10, _LONGEST_RETRY_PAUSE))
        backoff = Backoff(min(0.1, self._interval), longest)
        pause = self._first_pause()
        while not self._stopped.wait(pause):
            try:
                self._extend_all()
            except Exception as error:  # noqa: BLE001 -- the leases must be kept, whatever the error is
                log.info("heartbeat failed, will retry: error=%s", error)
                pause = backoff.next()
            else:
                backoff.reset()
                pause = self._interval
        self._session.close()

    def _first_pause(self) -> float:
        """A lease that was registered a while ago needs its first heartbeat earlier."""
        oldest = min((lease.extended_at for lease in self.leases), default=time.monotonic())
        return max(0.0, oldest + self._interval - time.monotonic())

    def _extend_all(self) -> None:
        with self._lock:
            unreachable = list(self._unreachable.values())
        for lease in self.leases:
            try:
                self._extend(lease)
            except Exception:
                self._move_last(lease)
                raise
        if unreachable:
            # The session reaches the database again, so the expiry may take these leases.
            with self._session.queue() as queue:
                queue.owner(unreachable[0].owner.name)
            with self._lock:
                for lease in unreachable:
                    self._unreachable.pop(id(lease), None)

    def _extend(self, lease: Lease) -> None:
        began = time.monotonic()
        try:
            with self._session.queue() as queue:
                queue.heartbeat(lease.owner)
        except LeaseLost as error:
            self.lose(lease, error)
        else:
            lease.extended_at = began

    def _move_last(self, lease: Lease) -> None:
        """Lets one call without an answer not delay the heartbeats of the other leases again."""
        with self._lock:
            if self._leases.pop(id(lease), None) is not None:
                self._leases[id(lease)] = lease


class LeaseExpirer(ServiceThread):
    """Expires lapsed leases of other programs every third of a lease, in a thread of its own.

    An expiry takes long when the leases held many tasks, and it waits for a purge. So heartbeats do not wait for it.
    The leases of `keeper` are excluded: they must not be lost to their own worker while the database is unreachable.
    An expiry that outlasts a stop is left behind and does no harm.
    """

    def __init__(self, keeper: LeaseKeeper, connect: Connect, length: timedelta, limit: CallLimit) -> None:
        self._keeper = keeper
        self._session = DatabaseSession(connect, limit)
        self._interval = length.total_seconds() / 3
        super().__init__("taskq expiry")

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            try:
                with self._session.queue() as queue:
                    queue.expire(except_owners=self._keeper.owner_names)
            except Exception as error:  # noqa: BLE001 -- the next expiry may succeed
                log.warning("expiry of lapsed leases failed, will retry: error=%s", error)
        self._session.close()
