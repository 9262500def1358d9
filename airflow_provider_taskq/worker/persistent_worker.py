"""Workers whose state, started or stopped, is stored in the database. All processes with such a worker follow it."""

import threading

from airflow_provider_taskq.queue.arguments import DurationLike, to_seconds
from airflow_provider_taskq.worker.connection import DatabaseSession
from airflow_provider_taskq.worker.notification_listener import NotificationListener
from airflow_provider_taskq.worker.signals import CHECK_SECONDS, StopSignals
from airflow_provider_taskq.worker.worker import GRACE, Worker

CHANNEL = "taskq_worker"


class PersistentWorker:
    """A worker whose state, on or off, is stored under its name. All processes with such a worker follow the state.

    `start` and `stop` change the stored state. This process follows at once, other processes after a notification.
    `initialize` and `shutdown` change nothing in the database: this process starts or stops to follow the state.

    :param check_every: time between two reads of the stored state without a notification.
    """

    def __init__(self, worker: Worker, check_every: DurationLike = "30s") -> None:
        self._worker = worker
        self._session = DatabaseSession(worker.connect, worker.call_limit())
        self._notifications = NotificationListener(
            worker.connect, CHANNEL, self._on_notification, self._follow, to_seconds(check_every, "check_every")
        )
        self._ended = threading.Event()
        self._lock = threading.RLock()

    @property
    def worker(self) -> Worker:
        """The worker that this object starts and stops."""
        return self._worker

    @property
    def is_active(self) -> bool:
        """Whether the worker runs in this process."""
        return self._worker.is_active

    def initialize(self) -> bool:
        """Start to follow the stored state, and start the worker if the state is on.

        Return False if no state is stored.
        """
        with self._lock:
            stored = self._stored_state()
            if not self._notifications.is_running:
                self._ended.clear()
                self._notifications.start()
            if stored:
                self._worker.start()
            return stored is not None

    def start(self) -> bool:
        """Start the worker, here and in the other processes.

        Return False if the worker runs in this process already.
        """
        with self._lock:
            if not self._worker.start():
                return False
            with self._session.queue() as queue:
                queue.activate_worker(self._worker.name)
            return True

    def stop(self, timeout: DurationLike | None = GRACE) -> bool:
        """Stop the worker, here and in the other processes.

        Return False if the worker does not run in this process.
        """
        with self._lock:
            if not self._worker.is_active:
                return False
            with self._session.queue() as queue:
                queue.deactivate_worker(self._worker.name)
            return self._worker.stop(timeout)

    def resume(self) -> bool:
        """Let the worker poll now instead of after its pause. Return False if the worker does not run."""
        return self._worker.resume()

    def shutdown(self, timeout: DurationLike | None = GRACE) -> bool:
        """Stop the worker in this process only, and keep the stored state. Return False if the worker does not run."""
        self._ended.set()
        self._notifications.stop(timeout)
        with self._lock:
            self._session.close()
            return self._worker.stop(timeout)

    def run(self, grace: DurationLike | None = GRACE) -> None:
        """Follow the stored state until SIGTERM or SIGINT. Start the worker if no state is stored."""
        with StopSignals(self._worker.hurry) as signals:
            try:
                if not self.initialize():
                    self.start()
                while not signals.received and not self._ended.wait(CHECK_SECONDS):
                    pass
            finally:
                self.shutdown(grace)

    def _on_notification(self, name: str) -> None:
        if name == self._worker.name:
            self._follow()

    def _follow(self) -> None:
        """Start or stop the worker as the stored state says, in the thread of the notifications."""
        with self._lock:
            stored = None if self._ended.is_set() else self._stored_state()
            if stored is True:
                self._worker.start()
            elif stored is False:
                self._worker.stop()

    def _stored_state(self) -> bool | None:
        with self._session.queue() as queue:
            return queue.is_worker_active(self._worker.name)
