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

    `TaskQueue.activate_worker` and `deactivate_worker` change the state, and notify these processes.

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

    def initialize(self) -> bool:
        """Start to follow the stored state, and start the worker if the state is on.

        Return False if no state is stored.
        """
        if not self._notifications.is_running:
            self._ended.clear()
            self._notifications.start()
        return self._follow() is not None

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
                    with self._lock, self._session.queue() as queue:
                        queue.activate_worker(self._worker.name)
                    self._follow()
                while not signals.received and not self._ended.wait(CHECK_SECONDS):
                    pass
            finally:
                self.shutdown(grace)

    def _on_notification(self, name: str) -> None:
        if name == self._worker.name:
            self._follow()

    def _follow(self) -> bool | None:
        """Start or stop the worker as the stored state says. Return the state; None if there is none."""
        with self._lock:
            if self._ended.is_set():
                return None
            with self._session.queue() as queue:
                stored = queue.is_worker_active(self._worker.name)
            if stored is True:
                self._worker.start()
            elif stored is False:
                self._worker.stop()
            return stored
