"""Leases of owners, the batches that are held under them, and the threads that watch over both."""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import psycopg

from airflow_provider_taskq.queue import Decision, LeaseLost, Owner, Task, TaskQueue, TaskQueueError
from airflow_provider_taskq.queue.backoff import Backoff
from airflow_provider_taskq.queue.connection import CallLimit
from airflow_provider_taskq.queue.session import Connect, DatabaseSession, Disconnected, heartbeat_limit
from airflow_provider_taskq.worker.batches import Batch
from airflow_provider_taskq.worker.config import WorkerConfig
from airflow_provider_taskq.worker.limiter import Token
from airflow_provider_taskq.worker.listener import ListenerDispatcher
from airflow_provider_taskq.worker.services import PeriodicService

log = logging.getLogger(__name__)

_LONGEST_RETRY_PAUSE = 5.0
_LONGEST_UPKEEP_INTERVAL = 60.0
_SHORTEST_UPKEEP_PAUSE = 0.05
_UPKEEP_REST_FACTOR = 4.0
_LONGEST_CHECK_INTERVAL = 1.0  # seconds between two checks of a Watchdog


class InFlightBatch:
    """A polled batch until its end. The first thread that claims the batch decides how it ends.

    :param following: the tasks of its group that are handled after the commit of this batch, and held until then.
    """

    def __init__(self, batch: Batch, lease: "Lease", token: Token, trace: Any, following: Sequence[Task] = ()) -> None:
        self.batch = batch
        self.lease = lease
        self.token = token
        self.trace = trace
        self.following = following
        self.committed: Mapping[Task, Decision] = {}
        self.abandoned_for: BaseException | None = None
        self.began = self.report_at = 0.0  # of the handler, for the Watchdog
        self._is_claimed = False
        self._lock = threading.Lock()

    @property
    def tasks(self) -> list[Task]:
        """The tasks of the batch, and those that follow in its group."""
        return [*self.batch.tasks, *self.following]

    def claim(self, abandoned_for: BaseException | None = None) -> bool:
        """Claim the end of the batch. Return True to the first caller only."""
        with self._lock:
            if self._is_claimed:
                return False
            self._is_claimed, self.abandoned_for = True, abandoned_for
            return True

    def abandon(self, reason: BaseException) -> bool:
        """Take the batch away from its handler. Return False if another thread has claimed it."""
        if not self.claim(reason):
            return False
        self.batch.cancel()
        self.lease.on_abandon(self)
        return True

    def describe(self) -> str:
        """Format the topic and the first sequences of the batch, for logs."""
        tasks = self.batch.tasks
        shown = ",".join(str(task.sequence) for task in tasks[:5]) + (",..." if len(tasks) > 5 else "")
        return f"topic={tasks[0].topic} tasks={len(tasks)} sequences={shown}"


class Lease:
    """The lease of one owner, and the batches that are held under it. A lost lease stays lost.

    It was registered at `since`, and counts as lost after `lost_after` seconds without a heartbeat. Each operation on
    its set of batches is atomic.
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
        self.extended_at = self.tried_at = time.monotonic() if since is None else since
        self.on_abandon = on_abandon
        self.lost_after = owner.lease.total_seconds() if lost_after is None else lost_after
        self._batches: set[InFlightBatch] = set()

    @property
    def batches(self) -> list[InFlightBatch]:
        """The batches that are held under the lease now."""
        return list(self._batches)

    def add(self, batch: InFlightBatch) -> None:
        """Add a batch. Abandon it at once if the lease is lost already."""
        self._batches.add(batch)
        if self.lost is not None:
            batch.abandon(self.lost)

    def remove(self, batch: InFlightBatch) -> None:
        """Remove a batch that has ended."""
        self._batches.discard(batch)

    def lose(self, error: LeaseLost) -> None:
        """Mark the lease as lost, and abandon its batches."""
        self.lost = error
        for batch in self.batches:
            batch.abandon(error)

    def seconds_left(self) -> float:
        """Return the seconds until the lease counts as lost, by this machine's monotonic clock."""
        return self.extended_at + self.lost_after - time.monotonic()


class LeaseKeeper(PeriodicService):
    """Extends leases every third of their length, which is in seconds, over a connection of its own.

    A lease is lost when a heartbeat raises LeaseLost, or when `check_clock` finds it overdue. Each operation on the
    list of leases is atomic.
    """

    def __init__(
        self, connect: Connect, length: float, on_loss: Callable[[LeaseLost], None], limit: CallLimit | None = None
    ) -> None:
        self._interval = length / 3
        self._on_loss = on_loss
        self._leases: list[Lease] = []
        longest = max(0.1, min(self._interval / 10, _LONGEST_RETRY_PAUSE))
        backoff = Backoff(min(0.1, self._interval), longest)
        super().__init__("taskq lease", connect, backoff, limit or heartbeat_limit(length))

    @property
    def leases(self) -> list[Lease]:
        """The leases that the keeper extends."""
        return list(self._leases)

    def add(self, lease: Lease) -> None:
        """Add a lease to extend."""
        self._leases.append(lease)

    def remove(self, lease: Lease) -> bool:
        """Remove a lease, which then lapses unless it is released. Return False if it was removed before."""
        try:
            self._leases.remove(lease)
        except ValueError:
            return False
        return True

    def lose(self, lease: Lease, error: LeaseLost) -> None:
        """Remove a lost lease, abandon its batches, and call `on_loss` the first time."""
        if self.remove(lease):
            lease.lose(error)
            self._on_loss(error)

    def check_clock(self) -> None:
        """Mark overdue leases as lost, without a call to the database: the network may block the heartbeats."""
        for lease in self.leases:
            if lease.seconds_left() <= 0:
                silent = f"no heartbeat of owner {lease.owner.name!r} reached the queue for {lease.lost_after:.1f}"
                length = f"{lease.owner.lease.total_seconds():g} seconds"
                self.lose(lease, LeaseLost(f"{silent} seconds of its lease of {length}"))

    def release(self, session: DatabaseSession, lease: Lease) -> bool:
        """Remove a lease, and release it with its tasks. Return False if the database cannot be reached."""
        self.remove(lease)
        return give_back(session, f"lease of owner {lease.owner.name!r}", lambda queue: queue.release(lease.owner))

    def _run_once(self) -> float:
        oldest = min((lease.extended_at for lease in self.leases), default=math.inf)
        if (pause := oldest + self._interval - time.monotonic()) > 0:
            return min(pause, self._interval)
        # A lease whose call got no answer is the last one: it must not delay the other heartbeats again.
        for lease in sorted(self.leases, key=lambda each: each.tried_at):
            lease.tried_at = time.monotonic()
            try:
                with self._session.queue() as queue:
                    queue.heartbeat(lease.owner)
                lease.extended_at = lease.tried_at
            except LeaseLost as error:
                self.lose(lease, error)
        return self._interval


def give_back(session: DatabaseSession, what: str, release: Callable[[TaskQueue], object]) -> bool:
    """Release what lapses otherwise. Return False if the database cannot be reached."""
    try:
        with session.queue() as queue:
            release(queue)
    except (TaskQueueError, psycopg.Error) as error:
        log.warning("%s not released, it will lapse: error=%s", what, error)
        return not isinstance(error, Disconnected)
    return True


class UpkeepThread(PeriodicService):
    """Carries out upkeep (`TaskQueue.maintain`) every third of a lease, at least every minute.

    It leaves out the owners `own_names`: a worker must not expire them after the database could not be reached. It
    registers them again, or other programs expire them. It is no part of the LeaseKeeper, as an expiry of many tasks is
    slow, and heartbeats must not wait for it.
    """

    def __init__(self, own_names: Sequence[str], connect: Connect, length: timedelta, limit: CallLimit) -> None:
        self._own_names = own_names
        self._interval = min(length.total_seconds() / 3, _LONGEST_UPKEEP_INTERVAL)
        super().__init__("taskq upkeep", connect, Backoff(self._interval, self._interval), limit)

    def _run_once(self) -> float:
        began = time.monotonic()
        with self._session.queue() as queue:
            has_more = queue.maintain(except_owners=self._own_names).more
        # The server rests for longer than the call took.
        rest = max(_SHORTEST_UPKEEP_PAUSE, _UPKEEP_REST_FACTOR * (time.monotonic() - began))
        return min(self._interval, rest) if has_more else self._interval


class HandlerStuck(Exception):
    """A handler took longer than its limit. Its tasks are FAILED, and its later decisions are ignored."""


class Watchdog(PeriodicService):
    """Watches the batches that handlers work on, and calls `check` at least once a second. Makes no network call."""

    def __init__(self, config: WorkerConfig, listeners: ListenerDispatcher, check: Callable[[], None]) -> None:
        self._reports, self._limit = config.slow_reports, config.limit
        self._listeners, self._check = listeners, check
        self._watched: set[InFlightBatch] = set()  # any thread may change it, as each operation on it is atomic
        super().__init__("taskq watchdog", connect=None)

    def add(self, batch: InFlightBatch) -> None:
        """Start to watch a batch. Call this method before the handler."""
        batch.began = time.monotonic()
        batch.report_at = batch.began + self._reports.after.total_seconds()
        self._watched.add(batch)

    def remove(self, batch: InFlightBatch) -> float:
        """End the watch of a batch. Return the seconds since `add`."""
        self._watched.remove(batch)
        return time.monotonic() - batch.began

    def _run_once(self) -> float:
        self._check_handlers()
        self._check()
        durations = (self._reports.after, self._reports.every, self._limit)
        return min(_LONGEST_CHECK_INTERVAL, *(each.total_seconds() / 4 for each in durations if each))

    def _check_handlers(self) -> None:
        now = time.monotonic()
        for batch in list(self._watched):
            seconds = now - batch.began
            if now >= batch.report_at:
                batch.report_at = now + self._reports.every.total_seconds()
                stack = "\n".join(f"{activity.name}:\n{activity.stack()}" for activity in batch.batch.activities())
                log.warning("handler is slow: %s seconds=%.1f stack:\n%s", batch.describe(), seconds, stack)
                self._listeners.on_stuck(batch.trace, seconds, stack)
            if self._limit is not None and seconds >= self._limit.total_seconds():
                batch.abandon(HandlerStuck(f"the handler took longer than its limit, {self._limit}"))
