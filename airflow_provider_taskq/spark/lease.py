"""A lease kept while Spark works: extended from a thread, and watched by another."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import psycopg

from airflow_provider_taskq.queue import LeaseLost, Owner, TaskQueue, TaskQueueError
from airflow_provider_taskq.queue.connection import CallLimit, limit_calls
from airflow_provider_taskq.spark.connection import Route

MAX_PAUSE = 5.0


class LeaseKeeper:
    """Extends an owner's lease every third of its length, on a connection of its own, and says when it is lost.

    Lost means that the queue said so, or that two thirds of the lease have passed since the last heartbeat that
    succeeded began, by this machine's monotonic clock. The second is told by a thread that touches no network, since a
    heartbeat may be stuck in one. It calls `on_loss`, and again every second, as what it stops may have a sequel.
    `since`: when the owner's registration began, by the same clock, as the lease has run since then; None: just now.
    """

    def __init__(self, owner: Owner, route: Route, on_loss: Callable[[], None], since: float | None = None) -> None:
        self._owner = owner
        self._route = route
        self._on_loss = on_loss
        self._lease = owner.lease.total_seconds()
        self._alive = time.monotonic() if since is None else since
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._lost: LeaseLost | None = None
        self._conn: psycopg.Connection[Any] | None = None
        self._threads = [
            threading.Thread(target=work, name=f"taskq lease {name}", daemon=True)
            for name, work in (("heartbeat", self._keep), ("watch", self._watch))
        ]

    def __enter__(self) -> Self:
        """Start."""
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop. A heartbeat that is stuck is left behind: it does no harm, and its thread ends with the program."""
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=MAX_PAUSE)

    @property
    def lost(self) -> LeaseLost | None:
        """Why the lease is lost, if it is."""
        return self._lost

    def _keep(self) -> None:
        """Heartbeats until stopped or lost; after a failed one the next follows sooner."""
        pause = max(0.0, self._alive + self._lease / 3 - time.monotonic())
        while not self._stopped.wait(pause) and self._lost is None:
            pause = self._lease / 3 if self._beat() else min(self._lease / 30, MAX_PAUSE)
        self._disconnect()

    def _beat(self) -> bool:
        """One heartbeat; False where the server could not be asked."""
        began = time.monotonic()
        try:
            TaskQueue(self._connected()).heartbeat(self._owner)
        except LeaseLost as error:
            self._lose(error)
        except (psycopg.Error, TaskQueueError):
            self._disconnect()
            return False
        else:
            with self._changed:
                self._alive = began
        return True

    def _watch(self) -> None:
        """Waits for two thirds of a lease to pass without a heartbeat, and tells of the loss, whatever its reason."""
        with self._changed:
            while not self._stopped.is_set() and self._lost is None:
                left = self._alive + self._lease * 2 / 3 - time.monotonic()
                if left <= 0:
                    self._lost = LeaseLost(
                        f"no heartbeat of owner {self._owner.name!r} reached the queue for "
                        f"{self._lease * 2 / 3:.0f} seconds, two thirds of its lease"
                    )
                else:
                    self._changed.wait(left)
        while not self._stopped.is_set():
            self._on_loss()
            self._stopped.wait(1)

    def _lose(self, error: LeaseLost) -> None:
        """Takes the queue's word for it."""
        with self._changed:
            self._lost = self._lost or error
            self._changed.notify_all()

    def _connected(self) -> psycopg.Connection[Any]:
        """The connection for heartbeats, made where there is none."""
        if self._conn is None:
            wait = max(2, int(self._lease / 6))
            self._conn = self._route.connect(autocommit=True, connect_timeout=wait)
            # Half of the time between the first heartbeat and the loss, so that there is time for another connection.
            limit_calls(self._conn, CallLimit(max(0.5, self._lease / 6), grows=False))
        return self._conn

    def _disconnect(self) -> None:
        """Gives the connection up."""
        if self._conn is not None:
            self._conn.close()
            self._conn = None
