"""Services that do their work periodically, in a thread."""

import logging
import threading
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager

from airflow_provider_taskq.queue import TaskQueue
from airflow_provider_taskq.queue.connection import CallLimit
from airflow_provider_taskq.worker.connection import Connect, DatabaseSession
from airflow_provider_taskq.worker.threads import ServiceThread

log = logging.getLogger(__name__)


class PeriodicService(ServiceThread):
    """Base class of services with a session. A subclass implements `_run_once`.

    :param pause: seconds until the next run after an error, which the service logs.
    :param limit: how long each call waits for an answer; a minute by default.
    """

    def __init__(self, name: str, connect: Connect, pause: float, limit: CallLimit | None = None) -> None:
        self._connect = connect
        self._limit = limit
        self._session = DatabaseSession(connect, limit)  # of the thread
        self._error_pause = pause
        super().__init__(name)

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called and the thread still runs."""
        return self._stopped.is_set() and self.is_running

    @abstractmethod
    def _run_once(self) -> float:
        """Do what is due, and return the seconds until the next run."""

    def _sleep(self, seconds: float) -> bool:
        """Sleep within a run. Return True at once if the service has to stop."""
        return self._stopped.wait(seconds) and self.is_running

    @contextmanager
    def _queue_for_once(self) -> Iterator[TaskQueue]:
        """Yield the queue, for a call from any thread.

        A call from another thread than the service's has a connection of its own: a transaction belongs to one thread.
        """
        if threading.current_thread() is self._thread:
            with self._session.queue() as queue:
                yield queue
        else:
            with closing(DatabaseSession(self._connect, self._limit)) as session, session.queue() as queue:
                yield queue

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                self._stopped.wait(self._run_safely())
        finally:
            self._session.close()

    def _run_safely(self) -> float:
        try:
            return self._run_once()
        except Exception as error:  # must not end the thread
            kind = type(error).__name__
            log.warning("service failed, will retry: service=%s error=%s", self._service_name, kind, exc_info=error)
            return self._error_pause
