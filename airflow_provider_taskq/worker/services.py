"""Services: work that goes on in a thread of its own, from `start` to `stop`."""

import logging
import threading
from abc import ABC, abstractmethod
from typing import Self

from airflow_provider_taskq.queue import TaskQueueError
from airflow_provider_taskq.queue.arguments import DurationLike, to_seconds
from airflow_provider_taskq.queue.backoff import Backoff
from airflow_provider_taskq.queue.connection import CallLimit
from airflow_provider_taskq.queue.errors import first_line
from airflow_provider_taskq.queue.faults import classify
from airflow_provider_taskq.worker.connection import Connect, DatabaseSession

log = logging.getLogger(__name__)

_STOP_SECONDS = 5.0


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


class RepeatedService(ServiceThread):
    """Base class of services that do the same again and again, after a pause of `backoff` if a run fails."""

    def __init__(self, name: str, backoff: Backoff | None = None) -> None:
        super().__init__(name)
        self._backoff = backoff or Backoff()

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

    @abstractmethod
    def _run_once(self) -> float:
        """Do what is due, and return the seconds until the next run."""


class PeriodicService(RepeatedService):
    """Base class of services with a session, whose calls wait for an answer up to `limit`; a minute by default."""

    def __init__(
        self, name: str, connect: Connect, backoff: Backoff | None = None, limit: CallLimit | None = None
    ) -> None:
        super().__init__(name, backoff)
        self._connect = connect
        self._session = DatabaseSession(connect, limit)  # of the thread

    def _run(self) -> None:
        try:
            super()._run()
        finally:
            self._session.close()
