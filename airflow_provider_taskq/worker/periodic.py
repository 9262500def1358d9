"""Services that do their work periodically, in a thread."""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Self

from airflow_provider_taskq.queue import TaskQueue, TaskQueueError
from airflow_provider_taskq.queue.connection import CallLimit
from airflow_provider_taskq.worker.connection import Connect, DatabaseSession

log = logging.getLogger(__name__)


class PeriodicService(ABC):
    """Base class of services with a thread and its session. Use `start` and `stop`, or a `with` block.

    A subclass implements `_run_once`.

    :param pause: seconds until the next run after an error, which the service logs.
    :param limit: how long each call waits for an answer; a minute by default.
    """

    def __init__(self, name: str, connect: Connect, pause: float, limit: CallLimit | None = None) -> None:
        self._connect = connect
        self._limit = limit
        self._session = DatabaseSession(connect, limit)  # of the thread
        self._service_name = name
        self._error_pause = pause
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called and the thread still runs."""
        return self._stopped.is_set() and self.is_running

    def start(self) -> None:
        """Start the thread. Raises TaskQueueError if it runs already."""
        if self.is_running:
            raise TaskQueueError(f"{self._service_name} runs already")
        self._stopped.clear()
        self._thread = threading.Thread(target=self._run, name=self._service_name, daemon=True)
        self._thread.start()

    def stop(self, timeout: float | None = None) -> bool:
        """Stop after the current run. Return False if the run takes longer than `timeout` seconds.

        :param timeout: None for no limit.
        """
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return not self.is_running

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

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
