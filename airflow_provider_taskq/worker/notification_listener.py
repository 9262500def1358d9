"""LISTEN in a thread with a connection of its own. Notifications save time; no guarantee depends on them."""

import logging
import select
import socket
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql

from airflow_provider_taskq.queue.arguments import DurationLike
from airflow_provider_taskq.queue.backoff import Backoff
from airflow_provider_taskq.queue.connection import CallLimit
from airflow_provider_taskq.queue.faults import is_read_only
from airflow_provider_taskq.worker.connection import Connect, connect_limited
from airflow_provider_taskq.worker.services import RepeatedService

log = logging.getLogger(__name__)

_ANSWER_SECONDS = 10.0  # time limit of a call
_SILENCE_SECONDS = 30.0  # without a notification, after which the connection is tested


class NotificationListener(RepeatedService):
    """Listens on a channel and calls `on_notification` with each payload. Reconnects after errors, also of the calls.

    Calls `on_missed` after each connect, because notifications may have been lost before; and after `every` seconds
    without a notification, if it is given.
    """

    def __init__(
        self,
        connect: Connect,
        channel: str,
        on_notification: Callable[[str], None],
        on_missed: Callable[[], object],
        every: float | None = None,
    ) -> None:
        self._connect = connect
        self._channel = channel
        self._on_notification = on_notification
        self._on_missed = on_missed
        self._every = every
        self._sockets: tuple[socket.socket, socket.socket] | None = None  # closing one wakes the thread from select()
        super().__init__(f"taskq listens to {channel}", Backoff(0.5))

    def start(self) -> None:
        """Start the thread."""
        self._sockets = socket.socketpair()
        super().start()

    def stop(self, timeout: DurationLike | None = 5.0) -> bool:
        """Stop the thread, and wait up to `timeout` for its end.

        The thread does not end while it opens a connection.
        """
        self._stopped.set()
        if self._sockets is not None:
            self._sockets[0].close()
        return super().stop(timeout)

    def _run(self) -> None:
        self._hung_up = (self._sockets or socket.socketpair())[1]
        with self._hung_up:
            super()._run()

    def _run_once(self) -> float:
        with connect_limited(self._connect, CallLimit(_ANSWER_SECONDS, grows=False)) as conn:
            conn.execute("SELECT set_config('idle_session_timeout', '0', false)")  # it is idle by design
            conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
            self._backoff.reset()
            self._on_missed()
            self._listen(conn)
        return 0.0

    def _listen(self, conn: psycopg.Connection[Any]) -> None:
        while not self._stopped.is_set():
            readable, _, _ = select.select(
                [conn.fileno(), self._hung_up.fileno()], [], [], self._every or _SILENCE_SECONDS
            )
            if not readable:
                # A dead connection may show no error, and a standby never notifies.
                conn.execute("SELECT")
                if is_read_only(conn):
                    raise psycopg.OperationalError("the server has become read-only")
                if self._every is not None:
                    self._on_missed()
            for notification in conn.notifies(timeout=0):
                self._on_notification(notification.payload)
