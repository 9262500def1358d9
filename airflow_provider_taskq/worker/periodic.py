"""Something done again and again, in a thread of its own, mostly on a session of its own."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from airflow_provider_taskq.queue import TaskQueue, TaskQueueError
from airflow_provider_taskq.queue.connection import CallLimit
from airflow_provider_taskq.worker.connection import Connect, Session

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

    def sleep(self, seconds: float) -> bool:
        """Sleeps within an `act`; True, and at once, where it was asked to stop."""
        return self._stopped.wait(seconds) and self.is_running

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                seconds = self._act()
            except Exception as error:  # whatever it was, the next call may go well
                log.warning("%s: %s", self.name, type(error).__name__, exc_info=error)
                seconds = self._pause
            self._stopped.wait(seconds)


class Routine:
    """The base of what works on the queue every so often, or once when it is called: a session, and when it goes.

    Started and stopped, or used as a context. `limit`: how long each call waits for an answer, a minute by default.
    """

    def __init__(
        self, name: str, connect: Connect, act: Callable[[], float], pause: float, limit: CallLimit | None = None
    ) -> None:
        self._session = Session(connect, limit)
        self._periodic = Periodic(name, act, pause)

    @property
    def is_running(self) -> bool:
        """Whether it was started and not stopped."""
        return self._periodic.is_running

    def start(self) -> None:
        """Begins at once, in a thread of its own; TaskQueueError where it runs already."""
        self._periodic.start()

    def stop(self, timeout: float | None = None) -> bool:
        """Ends after what is at hand, and tells whether that was in time. What it did stays."""
        ended = self._periodic.stop(timeout)
        if ended:
            self._session.close()
        return ended

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @contextmanager
    def _queue_for_once(self) -> Iterator[TaskQueue]:
        """The queue, and no connection left behind where nothing runs that would close it."""
        try:
            with self._session.queue() as queue:
                yield queue
        finally:
            if not self.is_running:
                self._session.close()
