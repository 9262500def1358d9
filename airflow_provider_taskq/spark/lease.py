"""The lease of a drain: kept while Spark works, with an early warning when it may be lost."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import psycopg

from airflow_provider_taskq.queue import LeaseLost, Owner
from airflow_provider_taskq.queue.connection import CallLimit
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.worker.lease import Lease, LeaseKeeper

_STOP_SECONDS = 5.0


class DrainLease:
    """Keeps the lease of a drain, on a connection of its own, and reports its loss to `on_loss`.

    The lease counts as lost when the queue says so, or two thirds of its length after the last heartbeat that succeeded
    began, by this machine's monotonic clock. A thread that touches no network checks the clock, since a heartbeat may
    be stuck. It calls `on_loss` every second from then on: Spark may start more jobs after the first is cancelled.

    :param since: when the owner's registration began, by `time.monotonic()`; None for now.
    """

    def __init__(
        self, owner: Owner, connection_info: ConnectionInfo, on_loss: Callable[[], None], since: float | None = None
    ) -> None:
        length = owner.lease.total_seconds()

        def connect() -> psycopg.Connection[Any]:
            return connection_info.connect(autocommit=True, connect_timeout=max(2, int(length / 6)))

        # Half of the time between the first heartbeat and the loss, so that there is time for another connection.
        limit = CallLimit(max(0.5, length / 6), grows=False)
        self._lease = Lease(owner, since, lost_after=length * 2 / 3)
        self._keeper = LeaseKeeper(connect, length, self._on_lost, limit)
        self._keeper.add(self._lease)
        self._on_loss = on_loss
        self._changed = threading.Event()  # lost or stopped
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="taskq lease watch", daemon=True)

    def __enter__(self) -> Self:
        self._keeper.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops, without waiting for a heartbeat that is stuck."""
        self._stopped.set()
        self._changed.set()
        self._keeper.stop()
        self._thread.join(timeout=_STOP_SECONDS)

    @property
    def lost(self) -> LeaseLost | None:
        """Why the lease is lost, if it is."""
        return self._lease.lost

    def _on_lost(self, error: LeaseLost) -> None:  # noqa: ARG002 -- `lost` has it
        self._changed.set()

    def _watch(self) -> None:
        while not self._changed.wait(max(0.0, self._lease.seconds_left())):
            self._keeper.check_clock()
        while not self._stopped.is_set():
            self._on_loss()
            self._stopped.wait(1)
