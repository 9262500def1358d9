"""Something done again and again, in a thread of its own."""

import logging
import threading
from collections.abc import Callable

from airflow_provider_taskq.queue import TaskQueueError

log = logging.getLogger(__name__)


class Periodic:
    """Calls `act`, which returns the seconds until it is to be called again; after an error, `pause` of them.

    An error is logged, and the next call is made all the same.
    """

    def __init__(self, name: str, act: Callable[[], float], pause: float) -> None:
        self.name = name
        self._act = act
        self._pause = pause
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Whether it was started and not stopped."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def is_stopping(self) -> bool:
        """Whether it was asked to stop: for an `act` that has several things to do."""
        return self._stopped.is_set() and self.is_running

    def start(self) -> None:
        """Begins at once; TaskQueueError where it runs already."""
        if self.is_running:
            raise TaskQueueError(f"{self.name} runs already")
        self._stopped.clear()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def stop(self, timeout: float | None = None) -> bool:
        """Ends after the call at hand, and tells whether that was in time. Of what does not run: True."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return not self.is_running

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                seconds = self._act()
            except Exception as error:  # whatever it was, the next call may go well
                log.warning("%s: %s", self.name, type(error).__name__, exc_info=error)
                seconds = self._pause
            self._stopped.wait(seconds)
