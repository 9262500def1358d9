"""The worker: polls a topic, calls a handler with the tasks, and commits its decisions."""

import logging
import threading
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Self

from airflow_provider_taskq.queue import DrainCounts, FailureLimit, MaxFailed, TaskQueue, TooManyUndecided
from airflow_provider_taskq.queue.arguments import DurationLike, to_seconds
from airflow_provider_taskq.queue.metrics import Recorder
from airflow_provider_taskq.queue.session import DatabaseSession
from airflow_provider_taskq.worker.config import WorkerConfig
from airflow_provider_taskq.worker.loops import loops_of
from airflow_provider_taskq.worker.runtime import WorkerRuntime
from airflow_provider_taskq.worker.services import CHECK_SECONDS, NotificationListener, StopSignals
from airflow_provider_taskq.worker.statistics import WorkerCounters, WorkerStatistics

log = logging.getLogger(__name__)

GRACE = timedelta(seconds=30)
CHANNEL = "taskq_worker"  # of the notifications of a changed state


@dataclass(eq=False, repr=False)
class Worker(WorkerConfig):
    """Polls a topic, calls a handler with the tasks, and commits the decisions, in threads of its own.

    Each duration is a timedelta, a number of seconds, or a text such as `90s`, `5m` or `PT5M`.

    :param dsn: connection string of the queue's database, a function that connects to it, or None to read the
        environment, as `queue.connect` does.
    :param handler: a function `task -> Decision | Result | None`, a handler made by `each` or `batch`, or a Composite.
    :param order: the order of tasks of one priority.
    :param condition: what keeps an identifier from being handed out.
    :param groups: handles the due tasks of one identifier one after another, each in a batch of its own; see `Groups`.
    :param size: tasks in a batch; one transaction commits one batch.
    :param workers: batches that are handled at a time, each in a thread of its own.
    :param prefetch: tasks that a poll claims beyond `size`, for all threads. One thread polls at a time, when none of
        them is left. With 0 each thread polls for itself.
    :param limiter: limits the batches that are handled at a time; several workers may share a limiter.
    :param lease: time after which another worker may take over the tasks of this process if it dies.
    :param pause: time between polls that find nothing; `resume` or a notification ends it.
    :param limit: time after which the batch of a slow handler is FAILED and another thread replaces its thread.
    :param timeouts: how long the worker waits for answers of the database.
    :param listen: listens for notifications of new tasks, on one more connection.
    :param name: the first part of the names of the worker's owners; the topic by default. At most 900 characters.
    :param listener: hooks that the worker calls at each event.
    :param slow_reports: when the worker reports a slow handler, with its stack.
    :raises ValueError: for options that are out of range or make no sense together.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._counters = WorkerCounters()
        self._runtime = WorkerRuntime(self, self._counters)  # of the last start; this one never starts
        self._runtime.stopping.set()
        self._runtime.stopped.set()
        self._hurried = False
        self._lock = threading.RLock()  # a signal handler may stop a worker that starts or stops in the same thread

    @property
    def is_active(self) -> bool:
        """Whether the worker runs; False from the beginning of a stop."""
        return not self._runtime.stopping.is_set()

    def start(self, timeout: DurationLike | None = GRACE, *, drain: bool = False) -> bool:
        """Start the worker, and return when it holds a lease. Return False if the worker runs already.

        :param timeout: None for no limit.
        :param drain: whether the worker tries a task that comes back at once only once, and holds it until its stop.
        :raises TimeoutError: if the worker holds no lease after `timeout`.
        :raises TaskQueueError: if no retry can help, such as UnknownTopic or SchemaMismatch.
        """
        with self._lock:
            if self.is_active:
                return False
            self._runtime.stop(0)  # an error of the limiter has ended its polls only
            self._hurried = False
            runtime = WorkerRuntime(self, self._counters, drains=drain)
            runtime.start(loops_of(runtime), to_seconds(timeout))
            self._runtime = runtime
            return True

    def stop(self, timeout: DurationLike | None = GRACE) -> bool:
        """Start no new batch, wait for the batches in flight, and release all other tasks.

        Return False if the worker did not run. After `timeout` the worker abandons the batches in flight: their
        handlers run on, but the worker ignores their decisions and releases the tasks.

        :param timeout: None for no limit; 0 also ends the wait of a concurrent `stop`.
        """
        seconds = to_seconds(timeout)
        if seconds == 0:
            self.hurry()
        with self._lock:
            active = self.is_active
            self._runtime.stop(seconds, lambda: self._hurried)
            return active

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def hurry(self) -> None:
        """End the wait of `stop` for batches in flight. A signal handler may call this method."""
        self._hurried = True

    def resume(self) -> bool:
        """Let the worker poll now instead of after its pause. Return False if the worker does not run."""
        self._runtime.idle_wait.wake()
        return self.is_active

    def statistics(self) -> WorkerStatistics:
        """Return the counters since the worker was created."""
        return self._counters.snapshot()

    def record_to(self, recorder: Recorder) -> None:
        """Send the counters to a recorder of metrics, with the labels `topic` and `worker`."""
        self._counters.record_to(partial(recorder, topic=self.topic, worker=self.name))

    def lease_seconds_left(self) -> list[float]:
        """The seconds until each lease lapses that the worker holds now, by this machine's clock."""
        return [lease.seconds_left() for lease in self._runtime.keeper.leases]

    def wait(self, timeout: DurationLike | None = None) -> bool:
        """Wait until `stop` stops the worker. Return False after `timeout`.

        :param timeout: None for no limit.
        :raises BaseException: the error of the limiter, if that ended the worker.
        """
        runtime = self._runtime
        if not runtime.stopping.wait(to_seconds(timeout)):
            return False
        if runtime.error is not None:
            raise runtime.error
        return True

    def drain(self, max_failed: MaxFailed = None, max_undecided: int | None = 0) -> WorkerStatistics:
        """Run until a poll finds nothing while no task is in flight, then stop and return the statistics.

        The drain leaves tasks that are due later or wait for a retry. It tries a task once that comes back at once: an
        undecided one, a snooze of less than a second, or a failure within its ttl. These tasks stay held until the end
        of the drain, and are READY then. A call of `stop` ends the drain earlier. An
        exception in this thread, such as KeyboardInterrupt, ends it at once: the worker abandons the batches in flight,
        and releases all tasks.

        :param max_failed: how many tasks may fail for good: a count (int), or a share of the tasks that ended (float),
            see `FailureLimit`. More failures do not stop the drain. Failures that the topic's policy retries do not
            count.
        :param max_undecided: how many tasks may be undecided; None for no limit.
        :raises TooManyFailures: at the end, if more tasks failed. The message has the counts and the first errors.
        :raises TooManyUndecided: at the end, if more tasks are undecided.
        :raises BaseException: the error of the limiter, if that ended the drain.
        """
        limit, undecided_before = FailureLimit.of(max_failed), self.statistics().undecided
        try:
            self.start(drain=True)
            while not self._has_ended(drain=True):
                pass
        except BaseException:
            self.stop(0)
            raise
        self.stop(None)
        self.wait()
        if limit is not None and (failure := limit.exceeded(self.topic, self.counts())):
            raise failure
        statistics = self.statistics()
        undecided = statistics.undecided - undecided_before
        if undecided:
            log.warning("drain left undecided tasks: topic=%s tasks=%d", self.topic, undecided)
        if too_many := TooManyUndecided.check(self.topic, undecided, max_undecided):
            raise too_many
        return statistics

    def counts(self) -> DrainCounts:
        """Ask the database how many tasks this worker has ended since its last start, and how many of them failed."""
        runtime = self._runtime
        if runtime.started is None:
            return DrainCounts(0, 0)
        with closing(self.connect()) as conn:
            return TaskQueue(conn).drain_counts(self.topic, runtime.owner_prefix, runtime.started)

    def run(self, grace: DurationLike | None = GRACE, *, drain: bool = False) -> None:
        """Run until SIGTERM or SIGINT. Then stop within `grace`, or at once after a second signal.

        :param drain: whether to stop also when the topic is drained, see `drain`.
        :raises BaseException: the error of the limiter, if that ended the worker.
        """
        with StopSignals(self.hurry) as signals:
            self.start(drain=drain)
            try:
                while not signals.received and not self._has_ended(drain=drain):
                    pass
            finally:
                self.stop(grace)
            self.wait()

    def _has_ended(self, *, drain: bool) -> bool:
        """Wait a moment, and return whether the worker was stopped, or has drained the topic."""
        runtime = self._runtime
        return (runtime.idle if drain else runtime.stopping).wait(CHECK_SECONDS) or runtime.stopping.is_set()


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
