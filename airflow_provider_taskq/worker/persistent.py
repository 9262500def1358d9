"""Workers that stay on or off: a state by name in the database, which outlives processes and is told to all of them."""

import logging
import threading
from datetime import timedelta

import psycopg

from airflow_provider_taskq.queue import TaskQueueError
from airflow_provider_taskq.worker.connection import Session
from airflow_provider_taskq.worker.notifications import NotificationListener
from airflow_provider_taskq.worker.patience import BackOff
from airflow_provider_taskq.worker.signals import LOOK, Signals
from airflow_provider_taskq.worker.worker import GRACE, Worker

log = logging.getLogger(__name__)

CHANNEL = "taskq_worker"


class PersistentWorker:
    """A worker whose start and stop are remembered under its name, and followed by all processes with such a worker.

    `initialize` begins to follow what is remembered, `shutdown` ends that and leaves it as it is. `start` and `stop`
    change it: for this process at once, and for the others as soon as they hear of it, or look: every `look`.
    """

    def __init__(self, worker: Worker, look: timedelta = timedelta(seconds=30)) -> None:
        self._worker = worker
        self._look = look.total_seconds()
        self._session = Session(worker.connect, worker.call_limit())
        self._notices: NotificationListener | None = None
        self._told = threading.Event()
        self._ended = threading.Event()
        self._following: threading.Thread | None = None
        self._lock = threading.RLock()

    @property
    def worker(self) -> Worker:
        """The worker itself."""
        return self._worker

    @property
    def is_active(self) -> bool:
        """Whether it works, or waits for work."""
        return self._worker.is_active

    def initialize(self) -> bool:
        """Begins to follow what is remembered, and works where that is to be; False where nothing is."""
        with self._lock:
            said = self._said()
            self._follow()
            if said:
                self._worker.start()
            return said is not None

    def start(self) -> bool:
        """Works, here and wherever such a worker follows, and remembers that; False where it worked already."""
        with self._lock:
            if not self._worker.start():
                return False
            self._say(active=True)
            return True

    def stop(self, timeout: timedelta | None = GRACE) -> bool:
        """Stops here and wherever such a worker follows, and remembers that; False where it did not work."""
        with self._lock:
            if not self._worker.is_active:
                return False
            self._say(active=False)
            return self._worker.stop(timeout)

    def resume(self) -> bool:
        """Lets a worker that pauses look at once; False where it does not work. Nothing is remembered."""
        return self._worker.resume()

    def shutdown(self, timeout: timedelta | None = GRACE) -> bool:
        """Stops in this process only; what is remembered stays. False where it did not work."""
        self._ended.set()
        self._told.set()
        if self._notices is not None:
            self._notices.stop()
        if self._following is not None:
            self._following.join(None if timeout is None else timeout.total_seconds())
        with self._lock:
            self._notices = self._following = None
            self._session.close()
            return self._worker.stop(timeout)

    def run(self, grace: timedelta | None = GRACE) -> None:
        """Follows what is remembered until SIGTERM or SIGINT; where nothing is, it starts. For the main thread."""
        with Signals(self._worker.hurry) as signals:
            if not self.initialize():
                self.start()
            while not signals.told and not self._ended.wait(LOOK):
                pass
            self.shutdown(grace)

    def _follow(self) -> None:
        """Listens, and looks now and then, in threads of their own."""
        if self._following is None:
            self._ended.clear()
            self._notices = NotificationListener(self._worker.connect, CHANNEL, self._hear, self._told.set)
            self._notices.start()
            self._following = threading.Thread(target=self._keep_up, name="taskq activation", daemon=True)
            self._following.start()

    def _hear(self, name: str) -> None:
        """Something was said of a worker."""
        if name == self._worker.name:
            self._told.set()

    def _keep_up(self) -> None:
        """Does what was said, whenever there may be something new."""
        back_off = BackOff()
        while not self._ended.is_set():
            self._told.wait(self._look)
            self._told.clear()
            try:
                self._obey()
                back_off.reset()
            except (TaskQueueError, psycopg.Error, TimeoutError) as error:
                log.info("Worker %r does not follow its state now, which is tried again: %s", self._worker.name, error)
                self._ended.wait(back_off.next())
                self._told.set()

    def _obey(self) -> None:
        """Starts or stops as is remembered now."""
        with self._lock:
            if self._ended.is_set():
                return
            said = self._said()
            if said is True:
                self._worker.start()
            elif said is False:
                self._worker.stop()

    def _said(self) -> bool | None:
        """What is remembered."""
        with self._session.queue() as queue:
            return queue.is_worker_active(self._worker.name)

    def _say(self, *, active: bool) -> None:
        """Remembers, and tells the others."""
        with self._session.queue() as queue:
            if active:
                queue.activate_worker(self._worker.name)
            else:
                queue.deactivate_worker(self._worker.name)
