"""Services, which work in a thread from `start` to `stop`, and the signals that stop a program."""

import logging
import select
import signal
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

import psycopg
from psycopg import sql

from airflow_provider_taskq.queue import TaskQueueError
from airflow_provider_taskq.queue.arguments import DurationLike, to_seconds
from airflow_provider_taskq.queue.backoff import Backoff
from airflow_provider_taskq.queue.connection import CallLimit
from airflow_provider_taskq.queue.errors import first_line
from airflow_provider_taskq.queue.faults import classify, is_read_only
from airflow_provider_taskq.queue.session import Connect, DatabaseSession

log = logging.getLogger(__name__)

CHECK_SECONDS = 0.2  # between two checks of `StopSignals.received`
_STOP_SECONDS = 5.0
_ANSWER_SECONDS = 10.0  # time limit of a call of a NotificationListener
_SILENCE_SECONDS = 30.0  # without a notification, after which its connection is tested


class ServiceThread(ABC):
    """Base class of services that run in a thread: use `start` and `stop`, or a `with` block."""

    def __init__(self, name: str) -> None:
        self._service_name = name
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the thread. Raises TaskQueueError if it runs already."""
        if self.is_running:
            raise TaskQueueError(f"{self._service_name} runs already")
        self._stopped.clear()
        self._thread = threading.Thread(target=self._run, name=self._service_name, daemon=True)
        self._thread.start()

    def stop(self, timeout: DurationLike | None = _STOP_SECONDS) -> bool:
        """Signal the thread to end, and wait for its end. Return False if it takes longer than `timeout`.

        :param timeout: None for no limit.
        """
        seconds = to_seconds(timeout)
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)
        return not self.is_running

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def _run(self) -> None:
        """Do the work of the thread until `_stopped` is set."""


class PeriodicService(ServiceThread):
    """Base class of services that do the same again and again, after a pause of `backoff` if a run fails.

    :param connect: connects the session of the service; None for a service that calls no database.
    :param limit: how long its calls wait for an answer; a minute by default.
    """

    def __init__(
        self, name: str, connect: Connect | None, backoff: Backoff | None = None, limit: CallLimit | None = None
    ) -> None:
        super().__init__(name)
        self._backoff = backoff or Backoff()
        self._session = DatabaseSession(connect or psycopg.connect, limit)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                pause = self._run_once()
                self._backoff.reset()
            except Exception as error:  # must not end the thread
                pause, trace = self._backoff.next(), None if classify(error).is_temporary else error
                named = (self._service_name, type(error).__name__, first_line(error))
                log.warning("service failed, will retry: service=%s error=%s: %s", *named, exc_info=trace)
            self._stopped.wait(pause)
        self._session.close()

    @abstractmethod
    def _run_once(self) -> float:
        """Do what is due, and return the seconds until the next run."""


class NotificationListener(PeriodicService):
    """Listens on a channel and calls `on_notification` with each payload. Notifications only save time.

    Calls `on_missed` after each connect, because notifications may have been lost before; and after `every` seconds
    without a notification, if it is given. Starts again after errors, also of these calls.
    """

    def __init__(
        self,
        connect: Connect,
        channel: str,
        on_notification: Callable[[str], None],
        on_missed: Callable[[], object],
        every: float | None = None,
    ) -> None:
        self._channel = channel
        self._on_notification = on_notification
        self._on_missed = on_missed
        self._every = every
        self._hang_up: socket.socket | None = None  # closing it wakes the thread from select()
        limit = CallLimit(_ANSWER_SECONDS, grows=False)
        super().__init__(f"taskq listens to {channel}", connect, Backoff(0.5), limit)

    def stop(self, timeout: DurationLike | None = 5.0) -> bool:
        """Stop the thread, and wait up to `timeout` for its end.

        The thread does not end while it opens a connection.
        """
        self._stopped.set()
        if self._hang_up is not None:
            self._hang_up.close()
        return super().stop(timeout)

    def _run(self) -> None:
        self._hang_up, self._hung_up = socket.socketpair()
        with self._hang_up, self._hung_up:
            super()._run()

    def _run_once(self) -> float:
        with self._session.queue() as queue:
            conn = queue.conn
            conn.execute("SELECT set_config('idle_session_timeout', '0', false)")  # it is idle by design
            conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
            self._backoff.reset()
            self._on_missed()
            self._listen(conn)
        return 0.0

    def _listen(self, conn: psycopg.Connection[Any]) -> None:
        while not self._stopped.is_set():
            watched = [conn.fileno(), self._hung_up.fileno()]
            readable, _, _ = select.select(watched, [], [], self._every or _SILENCE_SECONDS)
            if not readable:
                # A dead connection may show no error, and a standby never notifies.
                conn.execute("SELECT")
                if is_read_only(conn):
                    raise psycopg.OperationalError("the server has become read-only")
                if self._every is not None:
                    self._on_missed()
            for notification in conn.notifies(timeout=0):
                self._on_notification(notification.payload)


class StopSignals:
    """Receives SIGTERM and SIGINT while its block runs. Does nothing outside the main thread, as Python requires.

    Each signal after the first calls `on_repeat`, in a signal handler. So `on_repeat` may only set a flag.
    """

    def __init__(self, on_repeat: Callable[[], None] = lambda: None) -> None:
        self.received = False
        self._on_repeat = on_repeat
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = {each: signal.signal(each, self._receive) for each in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._previous.items():
            signal.signal(each, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 -- the signature of signal handlers
        if self.received:
            self._on_repeat()
        self.received = True
