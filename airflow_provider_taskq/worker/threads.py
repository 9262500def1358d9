"""Services that run in a thread of their own."""

import threading
from abc import ABC, abstractmethod
from typing import Self

from airflow_provider_taskq.queue import TaskQueueError

_SERVICE_STOP_SECONDS = 5.0


class ServiceThread(ABC):
    """Base class of services that run in a thread: use `start` and `stop`, or a `with` block.

    A subclass implements `_run`.
    """

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

    def stop(self, timeout: float | None = _SERVICE_STOP_SECONDS) -> bool:
        """Signal the thread to end, and wait for its end. Return False if it takes longer than `timeout` seconds.

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
    def _run(self) -> None:
        """Do the work of the thread until `_stopped` is set."""
