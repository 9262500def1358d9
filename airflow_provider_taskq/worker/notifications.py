"""Hears notifications of the database, in a thread with a connection of its own. Nothing depends on it."""

import logging
import select
import socket
import threading
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql

from airflow_provider_taskq.queue import TaskQueueError
from airflow_provider_taskq.queue.connection import CallLimit
from airflow_provider_taskq.queue.errors import is_read_only
from airflow_provider_taskq.worker.connection import Connect, limited
from airflow_provider_taskq.worker.patience import BackOff

log = logging.getLogger(__name__)

_ANSWER = 10.0  # seconds that the server has to answer in
_SILENCE = 30.0  # seconds without a notification after which the connection is tested


class NotificationListener:
    """Listens on a channel, again and again if need be, and calls `hear` with what comes.

    Calls `missed` where it may have missed something: at its begin, and after each loss of its connection.
    """

    def __init__(self, connect: Connect, channel: str, hear: Callable[[str], None], missed: Callable[[], None]) -> None:
        self._connect = connect
        self._channel = channel
        self._hear = hear
        self._missed = missed
        self._stopped = threading.Event()
        self._sockets: tuple[socket.socket, socket.socket] | None = None  # wake the thread out of its wait
        self._thread = threading.Thread(target=self._listen_on, name=f"taskq listens to {channel}", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._sockets = socket.socketpair()
        self._thread.start()

    def stop(self) -> None:
        """Ends; a connection that is being made is left behind."""
        if self._sockets is None or self._stopped.is_set():
            return
        self._stopped.set()
        self._sockets[0].close()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def _listen_on(self) -> None:
        """Listens until it is stopped; what goes wrong is tried again."""
        _, hung_up = self._sockets or socket.socketpair()
        back_off = BackOff(0.5, 30)
        while not self._stopped.is_set():
            try:
                with limited(self._connect, CallLimit(_ANSWER, grows=False)) as conn:
                    conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
                    back_off.reset()
                    self._missed()
                    self._listen(conn, hung_up)
            except (psycopg.Error, TaskQueueError, OSError) as error:
                if not self._stopped.is_set():
                    log.info("Notifications are not heard now, the queue is polled: %s", error)
            self._stopped.wait(back_off.next())
        hung_up.close()

    def _listen(self, conn: psycopg.Connection[Any], hung_up: socket.socket) -> None:
        """Listens on a connection until it is lost, or all is over."""
        while not self._stopped.is_set():
            heard, _, _ = select.select([conn.fileno(), hung_up.fileno()], [], [], _SILENCE)
            if not heard:  # a connection that is never answered, or a standby, tells of nothing
                conn.execute("SELECT")
                if is_read_only(conn):
                    raise psycopg.OperationalError("the server has become read-only")
            for notice in conn.notifies(timeout=0):
                self._hear(notice.payload)
