"""Runtime of one worker: its threads and their shared state, from the start of the worker to its stop."""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from airflow_provider_taskq.queue import Decision, Task
from airflow_provider_taskq.queue.owner_names import worker_instance_id, worker_owner_name
from airflow_provider_taskq.worker.batches import Batch, name_of
from airflow_provider_taskq.worker.config import WorkerConfig
from airflow_provider_taskq.worker.connection import Connect, DatabaseSession
from airflow_provider_taskq.worker.filters import failures_of_unreadable, readable
from airflow_provider_taskq.worker.handlers import TaskResultException, WorkHandler, decision_on, handle_batch
from airflow_provider_taskq.worker.lease import BatchThread, InFlightBatch, Lease, LeaseExpirer, LeaseKeeper
from airflow_provider_taskq.worker.limiter import Limiter, NoLimit, Token
from airflow_provider_taskq.worker.listener import ListenerDispatcher
from airflow_provider_taskq.worker.notifications import NotificationListener
from airflow_provider_taskq.worker.statistics import WorkerCounters
from airflow_provider_taskq.worker.watchdog import HandlerStuck, Watchdog

log = logging.getLogger(__name__)

_CHECK_SECONDS = 0.2  # between two checks whether a stop is in a hurry now
_IDLE_FACTOR = 4.0  # an empty poll may take long, when many identifiers are blocked


class WorkerStopped(Exception):
    """The worker stopped before a batch was done."""


class WorkerThread(Protocol):
    """A loop of a worker, which runs in a thread."""

    thread: threading.Thread


class IdleWait:
    """The wait of a worker's threads for tasks: one polls periodically, the others sleep.

    A thread that finds more tasks than it can take wakes the next.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._changed = threading.Condition()
        self._polling = False
        self._wakes = 0
        self._ended = False

    def wakes(self) -> int:
        """The number of wakes so far. Read it before a poll, so that no wake during the poll is lost."""
        return self._wakes

    def wait(self, wakes: int, took: float = 0.0) -> None:
        """Returns when it is time to poll again: after the pause, or at once if there was a wake since `wakes`.

        :param took: seconds that the last empty poll took. Empty polls take at most a fifth of the time.
        """
        with self._changed:
            if self._polling:
                self._changed.wait_for(lambda: self._ended or self._wakes > wakes or not self._polling)
            if self._ended or self._wakes > wakes:
                return
            self._polling = True
            self._changed.wait_for(lambda: self._ended or self._wakes > wakes, self.seconds_after(took))
            self._polling = False
            # All, because the one that is notified alone may be in `sleep`, and would sleep on.
            self._changed.notify_all()

    def seconds_after(self, took: float) -> float:
        """The pause after an empty poll that took `took` seconds."""
        return max(self._seconds, _IDLE_FACTOR * took)

    def sleep(self, wakes: int, seconds: float) -> None:
        """Waits this long, or until there was a wake since `wakes`, regardless of other threads."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._wakes > wakes, seconds)

    def wake(self) -> None:
        """Lets the threads that wait poll at once."""
        with self._changed:
            self._wakes += 1
            self._changed.notify_all()

    def end(self) -> None:
        """Ends all waits, also later ones."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class ThreadRegistry:
    """The threads of a worker that have to end before it has stopped."""

    def __init__(self) -> None:
        self._threads: set[WorkerThread] = set()
        self._changed = threading.Condition()

    def start(self, thread: WorkerThread) -> None:
        """Adds and starts a thread."""
        with self._changed:
            self._threads.add(thread)
        thread.thread.start()

    def remove(self, thread: WorkerThread) -> None:
        """Removes a thread that ends, or that is left behind in a handler."""
        with self._changed:
            self._threads.discard(thread)
            self._changed.notify_all()

    def wait(self, deadline: float | None, is_hurried: Callable[[], bool]) -> None:
        """Waits until all threads but the caller's were removed, for as long as the deadline and `is_hurried` allow."""
        with self._changed:
            while self._has_others() and not is_hurried():
                left = _CHECK_SECONDS if deadline is None else min(_CHECK_SECONDS, deadline - time.monotonic())
                if left <= 0:
                    return
                self._changed.wait(left)

    def _has_others(self) -> bool:
        return any(each.thread is not threading.current_thread() for each in self._threads)


class WorkerRuntime:
    """Runtime of one worker, from start() to stop()."""

    def __init__(
        self,
        config: WorkerConfig,
        connect: Connect,
        handler: WorkHandler,
        limiter: Limiter,
        listeners: ListenerDispatcher,
        counters: WorkerCounters,
    ) -> None:
        self.config = config
        self.connect = connect
        self.handler = handler
        self.listeners = listeners
        self.counters = counters
        self.idle_wait = IdleWait(config.pause.total_seconds())
        self.keeper = LeaseKeeper(connect, config.lease.total_seconds(), listeners.on_fatal)
        self.watchdog = Watchdog(config, listeners, self._handler_timed_out, self.keeper.check_clock)
        self.threads = ThreadRegistry()
        self.has_lease = threading.Event()  # of any of its threads
        self.idle = threading.Event()  # once a poll found nothing while nothing was in flight
        self.stopping = threading.Event()  # no new batch is started
        self.stopped = threading.Event()  # decisions are ignored from now on
        self.on_stopping: list[Callable[[], None]] = []
        # A completion may only be sent with the next poll if no other worker waits for its token.
        self.completes_with_poll = isinstance(limiter, NoLimit)
        self.started: datetime | None = None  # by the database's clock
        self._limiter = limiter
        self._expirer = LeaseExpirer(self.keeper, connect, config.lease, config.call_limit())
        self._notifications = (
            NotificationListener(connect, "taskq", self._on_notification, self.idle_wait.wake)
            if config.listen
            else None
        )
        place = worker_instance_id()
        self.owner_prefix = f"{config.name}/{place}"
        self._owner_names = (worker_owner_name(config.name, place, number) for number in itertools.count(1))
        self._lock = threading.Lock()

    def start(self, threads: Sequence[WorkerThread], timeout: float | None) -> None:
        """Starts, and returns when a thread has a lease. TimeoutError if none has in time; nothing runs then."""
        self._check_queue()
        self.keeper.start()
        self._expirer.start()
        self.watchdog.start()
        if self._notifications is not None:
            self._notifications.start()
        for thread in threads:
            self.threads.start(thread)
        if not self.has_lease.wait(timeout):
            self.stop(0)
            raise TimeoutError(f"worker {self.config.name!r} got no lease within {timeout} seconds")

    def stop(self, timeout: float | None, is_hurried: Callable[[], bool] = lambda: False) -> None:
        """Waits this many seconds for batches in flight, abandons the others, and releases all leases.

        `is_hurried()` ends the wait when it returns True.
        """
        self.stop_polling()
        self.threads.wait(None if timeout is None else time.monotonic() + timeout, is_hurried)
        self.stopped.set()
        self._release_leases()
        self.keeper.stop()
        self._expirer.stop()
        if self._notifications is not None:
            self._notifications.stop()
        self.watchdog.stop(None)
        self.handler.close()

    def stop_polling(self) -> None:
        """Starts no new batch from now on."""
        self.stopping.set()
        self.idle_wait.end()
        for call in self.on_stopping:
            call()

    def session(self) -> DatabaseSession:
        """A new session with the database."""
        return DatabaseSession(self.connect, self.config.call_limit())

    def next_owner_name(self) -> str:
        """The name of one more owner; each name is used once."""
        with self._lock:
            return next(self._owner_names)

    def token(self) -> Token | None:
        """Waits for the right to one more batch. None if the worker stops; an error of the limiter stops it."""
        try:
            return self._limiter.request(self.stopping.is_set)
        except Exception as error:  # noqa: BLE001 -- whatever a limiter raises
            self.listeners.on_fatal(error)
            self.stop_polling()
            return None

    def start_batch(self, tasks: Sequence[Task], lease: Lease, token: Token) -> InFlightBatch:
        """Accounts for a batch that was polled."""
        batch = InFlightBatch(Batch(tasks, self.config.rewrite), lease, token, self.listeners.on_start(tasks))
        self.counters.polled(len(tasks))
        lease.add(batch)
        return batch

    def run_handler(self, batch: InFlightBatch, thread: BatchThread) -> dict[Task, Decision] | BaseException | None:
        """Calls the handler in this thread. Returns its decisions, or the error that fails the whole batch.

        Returns None if the batch was abandoned meanwhile.
        """
        batch.thread = thread
        outcome = self._decide(batch)
        if not batch.claim():
            return None
        if not isinstance(outcome, BaseException):
            self.listeners.on_callback(batch.trace, outcome)
        return outcome

    def _decide(self, in_flight: InFlightBatch) -> dict[Task, Decision] | BaseException:
        """Calls the handler. Fails the tasks whose payload cannot be decoded; the handler gets the others."""
        batch = in_flight.batch
        self.listeners.on_dispatched(in_flight.trace)
        self.watchdog.add(in_flight)
        handler = readable(self.handler, batch)
        try:
            with batch.running(name_of(handler)):
                return handle_batch(handler, batch)
        except TaskResultException as error:
            return {**dict.fromkeys(batch.tasks, decision_on(error)), **failures_of_unreadable(batch.tasks)}
        except BaseException as error:  # noqa: BLE001 -- also SystemExit: it ends the batch, not the worker
            return error
        finally:
            self.counters.handled(self.watchdog.remove(in_flight))

    def on_abandoned(self, batch: InFlightBatch) -> None:
        """Accounts for a batch that was taken away from its handler. Its tasks will be polled again."""
        batch.token.release()
        self.counters.ended(len(batch.batch.tasks), ())
        log.warning("batch abandoned: %s reason=%s", batch.describe(), batch.abandoned_for)
        if batch.abandoned_for is not None:
            self.listeners.on_error(batch.trace, batch.abandoned_for)

    def _check_queue(self) -> None:
        """Raises the error of a worker that cannot work: no server, no schema, no topic, no such condition."""
        session = self.session()
        try:
            with session.queue() as queue:
                self.started = queue.now()
                queue.ready(self.config.topic, 1, self.config.condition)
        finally:
            session.close()

    def _release_leases(self) -> None:
        reason = WorkerStopped(f"worker {self.config.name!r} stopped")
        session = self.session()
        leases, reachable = self.keeper.leases, True
        for batch in [batch for lease in leases for batch in lease.batches]:
            batch.lease.abandon(batch, reason)
        for lease in leases:
            reachable = reachable and self.keeper.release(session, lease)
            self.keeper.remove(lease)
        session.close()

    def _handler_timed_out(self, batch: InFlightBatch) -> None:
        """Fails the batch of a handler that exceeds its limit, in a thread that replaces the handler's.

        The thread is also replaced if the batch was abandoned before, because its lease was lost. It is not replaced
        if the handler has just ended.
        """
        fail = batch.abandon(HandlerStuck(f"the handler took longer than its limit, {self.config.limit}"))
        is_stuck = fail or self.watchdog.is_handled(batch)
        if batch.thread is not None and is_stuck and not self.stopped.is_set():
            batch.thread.replace(batch, fail)

    def _on_notification(self, topic: str) -> None:
        if topic == self.config.topic:
            self.idle_wait.wake()
