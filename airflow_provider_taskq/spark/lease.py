"""Keeps the lease of a drain while Spark works, detects its loss before it ends, and carries out upkeep meanwhile."""

import threading
from collections.abc import Callable
from typing import Any, Self

import psycopg

from airflow_provider_taskq.queue import LeaseLost, Owner
from airflow_provider_taskq.queue.connection import CallLimit
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.worker.lease import Lease, LeaseKeeper, UpkeepThread

_STOP_SECONDS = 5.0
_UPKEEP_SECONDS = 60.0  # limit of a call, which grows with each call that reaches it


class DrainLease:
    """Keeps the lease of a drain, on a connection of its own, and reports its loss to `on_loss`.

    The lease counts as lost when a heartbeat raises LeaseLost, or when the last successful heartbeat began two thirds
    of the lease's length ago, by this machine's monotonic clock.

    :param on_loss: called every second after the loss, because Spark may start more jobs after the first is cancelled.
    :param since: when the owner's registration began, by `time.monotonic()`; None for now.
    """

    def __init__(
        self, owner: Owner, connection_info: ConnectionInfo, on_loss: Callable[[], None], since: float | None = None
    ) -> None:
        length = owner.lease.total_seconds()

        def connect() -> psycopg.Connection[Any]:
            return connection_info.connect(autocommit=True, connect_timeout=max(2, int(length / 6)))

        # The keeper beats every third of the length. A sixth leaves time for a second attempt before the loss.
        limit = CallLimit(max(0.5, length / 6), grows=False)
        self._connect = connect
        self._upkeep: UpkeepThread | None = None
        self._on_loss = on_loss
        self._changed = threading.Event()  # lost or stopped
        self._stopped = threading.Event()
        self._lease = Lease(owner, since, lost_after=length * 2 / 3)
        self._keeper = LeaseKeeper(connect, length, lambda _: self._changed.set(), limit)
        self._keeper.add(self._lease)
        # This thread uses no network, so a heartbeat that is stuck does not delay it.
        self._thread = threading.Thread(target=self._watch, name="taskq lease watch", daemon=True)

    def __enter__(self) -> Self:
        self._keeper.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._changed.set()
        self._keeper.stop()
        if self._upkeep is not None:
            self._upkeep.stop()
        self._thread.join(timeout=_STOP_SECONDS)  # a call to the JVM in `on_loss` may be stuck

    def start_upkeep(self) -> None:
        """Start the upkeep of the queue, on a connection of its own. It ends with the drain."""
        owner = self._lease.owner
        self._upkeep = UpkeepThread([owner.name], self._connect, owner.lease, CallLimit(_UPKEEP_SECONDS))
        self._upkeep.start()

    @property
    def lost(self) -> LeaseLost | None:
        """The error that tells why the lease is lost; None while it is kept."""
        return self._lease.lost

    def _watch(self) -> None:
        while not self._changed.wait(max(0.0, self._lease.seconds_left())):
            self._keeper.check_clock()
        while not self._stopped.is_set():
            self._on_loss()
            self._stopped.wait(1)
