"""Leases kept while handlers run: extended by a thread with a connection of its own."""

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from airflow_provider_taskq.queue import LeaseLost
from airflow_provider_taskq.queue.connection import CallLimit
from airflow_provider_taskq.worker.connection import Connect, Session, call_limit, heartbeat_limit
from airflow_provider_taskq.worker.lease import Lease
from airflow_provider_taskq.worker.patience import BackOff, left

log = logging.getLogger(__name__)

_PARTING = 5.0  # seconds that both threads get to end in


class LeaseKeeper:
    """Extends the leases of a worker every third of their length, and lets lapsed ones of others expire.

    A lease that is gone is told to its tenure, which gives up what it holds, and to `on_loss`. The worker's own leases
    are never taken by its own expiry while their heartbeats do not get through. `limit`: of an expiry's call.
    """

    def __init__(
        self, connect: Connect, lease: float, on_loss: Callable[[LeaseLost], None], limit: CallLimit | None = None
    ) -> None:
        self._session = Session(connect, heartbeat_limit(lease))
        self._pause = lease / 3
        self._on_loss = on_loss
        self._tenures: dict[int, Lease] = {}
        self._doubtful: dict[int, Lease] = {}  # lost by this machine's clock, since when no heartbeat got through
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="taskq lease", daemon=True)
        self._expiring = threading.Thread(
            target=self._expire,
            args=(Session(connect, limit or call_limit(timedelta(seconds=lease))),),
            name="taskq expiry",
            daemon=True,
        )

    def start(self) -> None:
        """Begins."""
        self._thread.start()
        self._expiring.start()

    def stop(self) -> None:
        """Ends; what is stuck is left behind, a heartbeat or an expiry, and does no harm."""
        self._stopped.set()
        deadline = time.monotonic() + _PARTING
        for thread in (self._thread, self._expiring):
            if thread is not threading.current_thread():
                thread.join(left(deadline))

    def add(self, tenure: Lease) -> None:
        """Keeps one more lease."""
        with self._lock:
            self._tenures[id(tenure)] = tenure

    def remove(self, tenure: Lease) -> None:
        """Keeps a lease no more."""
        with self._lock:
            self._tenures.pop(id(tenure), None)

    def tenures(self) -> list[Lease]:
        """Those whose leases are kept."""
        with self._lock:
            return list(self._tenures.values())

    def lose(self, tenure: Lease, error: LeaseLost) -> None:
        """A lease is gone: whatever is held under it is given up."""
        self.remove(tenure)
        if tenure.lose(error):
            self._on_loss(error)

    def check_clock(self) -> None:
        """Gives up the leases that nobody could extend in time; touches no network, which may be what is stuck."""
        for tenure in self.tenures():
            if (error := tenure.has_lapsed()) is not None:
                with self._lock:
                    self._doubtful[id(tenure)] = tenure
                self.lose(tenure, error)

    def _keep(self) -> None:
        """Heartbeats until stopped; after one that did not get through the next follows sooner."""
        back_off = BackOff(min(0.1, self._pause), self._pause)
        pause = self._pause
        while not self._stopped.wait(pause):
            try:
                self._round()
            except Exception as error:  # noqa: BLE001 -- the leases have to be kept, whatever it is
                log.info("A worker's leases were not extended, which is tried again: %s", error)
                pause = back_off.next()
            else:
                back_off.reset()
                pause = self._pause
        self._session.close()

    def _round(self) -> None:
        """One heartbeat for each lease; after a failure the next round begins with the other leases."""
        doubtful = self._doubtful_tenures()
        for tenure in self.tenures():
            try:
                self._beat(tenure)
            except Exception:
                self._put_last(tenure)
                raise
        self._clear_doubt(doubtful)

    def _put_last(self, tenure: Lease) -> None:
        """Moves a lease behind the others, which one call that gets no answer must not keep from their heartbeats."""
        with self._lock:
            if self._tenures.pop(id(tenure), None) is not None:
                self._tenures[id(tenure)] = tenure

    def _doubtful_tenures(self) -> list[Lease]:
        """The leases that were lost by this machine's clock and are still kept from the worker's own expiry."""
        with self._lock:
            return list(self._doubtful.values())

    def _clear_doubt(self, doubtful: list[Lease]) -> None:
        """Lets leases expire that were lost by the clock, once the heartbeats' session reaches the database again."""
        if not doubtful:
            return
        with self._session.queue() as queue:
            queue.owner(doubtful[0].owner.name)
        with self._lock:
            for tenure in doubtful:
                self._doubtful.pop(id(tenure), None)

    def _own_names(self) -> list[str]:
        """The owners whose leases this worker keeps, or cannot reach now."""
        return list({tenure.owner.name for tenure in (*self.tenures(), *self._doubtful_tenures())})

    def _expire(self, session: Session) -> None:
        """Lets lapsed leases of others expire: by itself, as that takes long for many tasks, and waits for a purge."""
        while not self._stopped.wait(self._pause):
            try:
                with session.queue() as queue:
                    queue.expire(except_owners=self._own_names())
            except Exception as error:  # noqa: BLE001 -- the next time it may go well
                log.warning("A worker could not let lapsed leases of others expire: %s", error)
        session.close()

    def _beat(self, tenure: Lease) -> None:
        """One heartbeat."""
        began = time.monotonic()
        try:
            with self._session.queue() as queue:
                queue.heartbeat(tenure.owner)
        except LeaseLost as error:
            self.lose(tenure, error)
        else:
            tenure.extended(began)
