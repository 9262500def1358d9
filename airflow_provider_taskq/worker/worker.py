"""The worker: polls a topic, calls a handler with the tasks, and commits its decisions."""

import threading
from contextlib import closing
from datetime import timedelta

from airflow_provider_taskq.queue import Condition, DrainCounts, FailureLimit, MaxFailed, Order, TaskQueue
from airflow_provider_taskq.queue.connection import CallLimit
from airflow_provider_taskq.queue.durations import DurationLike, to_timedelta
from airflow_provider_taskq.worker.batches import Rewrite
from airflow_provider_taskq.worker.config import Pending, WorkerConfig
from airflow_provider_taskq.worker.connection import HANDLER_STATEMENT_TIMEOUT, Connect, connection_factory
from airflow_provider_taskq.worker.executors import handler_of
from airflow_provider_taskq.worker.handlers import TaskFunction, WorkHandler
from airflow_provider_taskq.worker.limiter import Limiter, NoLimit
from airflow_provider_taskq.worker.listener import ListenerDispatcher, WorkerListener
from airflow_provider_taskq.worker.poll_loop import PollLoop
from airflow_provider_taskq.worker.prefetch import prefetching_threads
from airflow_provider_taskq.worker.runtime import WorkerRuntime, WorkerThread
from airflow_provider_taskq.worker.signals import CHECK_SECONDS, StopSignals
from airflow_provider_taskq.worker.statistics import WorkerCounters, WorkerStatistics

GRACE = timedelta(seconds=30)


class Worker:
    """Polls a topic, calls a handler with its tasks, and commits the decisions, in threads of its own.

    Each duration is a timedelta, a number of seconds, or a text such as `90s`, `5m` or `PT5M`.

    :param dsn: of the queue's database, a function that connects to it, or None for the environment's.
    :param handler: a function `task -> Decision | Result | None`, a handler made by `each` or `batch`, or a Composite.
    :param size: tasks in a batch; one batch is one transaction.
    :param workers: batches handled at a time, each in a thread of its own.
    :param prefetch: tasks that are polled ahead for these threads; with 0 each thread polls for itself.
    :param pending: the end of prefetched tasks when the worker stops.
    :param limiter: limits the batches in flight, for several workers together if they share it.
    :param pause: time between polls that find nothing; `resume` or a notification ends it.
    :param lease: how long the tasks of this process stay its own after it died.
    :param slow_after: time after which a slow handler is reported, with its stack.
    :param report_every: time between further reports.
    :param limit: time after which the batch of a slow handler is FAILED, and its thread is left behind.
    :param rewrite: changes follow-ups before they are pushed, such as `tagged`.
    :param listen: listens for notifications of new tasks, on one more connection.
    :param name: the first part of its owners' names; the topic by default.
    :param call_timeout: how long a call waits for an answer of the database before the worker opens another connection;
        by default a third of the lease, at least 5 seconds.
    :param handler_statement_timeout: the same for statements of commit hooks.
    """

    def __init__(
        self,
        dsn: str | Connect | None,
        topic: str,
        handler: WorkHandler | TaskFunction,
        *,
        size: int = 1,
        order: Order = Order.FIRST_IN_FIRST_OUT,
        condition: Condition = Condition.NONE,
        workers: int = 1,
        prefetch: int = 0,
        pending: Pending = Pending.FINISH,
        limiter: Limiter | None = None,
        listener: WorkerListener | None = None,
        pause: DurationLike = timedelta(seconds=1),
        lease: DurationLike = timedelta(minutes=1),
        slow_after: DurationLike = timedelta(minutes=5),
        report_every: DurationLike = timedelta(minutes=1),
        limit: DurationLike | None = None,
        rewrite: Rewrite | None = None,
        listen: bool = True,
        name: str | None = None,
        call_timeout: DurationLike | None = None,
        handler_statement_timeout: DurationLike = HANDLER_STATEMENT_TIMEOUT,
    ) -> None:
        self._connect = connection_factory(dsn, to_timedelta(lease))
        self._handler = handler_of(handler)
        self._limiter = limiter or NoLimit()
        self._listeners = ListenerDispatcher(listener)
        self._counters = WorkerCounters()
        self._config = WorkerConfig(
            topic=topic,
            name=name or topic,
            size=size,
            order=Order(order),
            condition=Condition(condition),
            workers=workers,
            prefetch=prefetch,
            pending=Pending(pending),
            pause=to_timedelta(pause),
            lease=to_timedelta(lease),
            slow_after=to_timedelta(slow_after),
            report_every=to_timedelta(report_every),
            limit=to_timedelta(limit),
            rewrite=rewrite,
            listen=listen,
            call_timeout=to_timedelta(call_timeout),
            handler_statement_timeout=to_timedelta(handler_statement_timeout),
        )
        self._runtime: WorkerRuntime | None = None
        self._last_runtime: WorkerRuntime | None = None  # stays after a stop
        self._hurried = False
        self._lock = threading.RLock()  # a signal handler may stop a worker that starts or stops in the same thread

    @property
    def topic(self) -> str:
        """The topic that it polls."""
        return self._config.topic

    @property
    def name(self) -> str:
        """The first part of its owners' names."""
        return self._config.name

    @property
    def connect(self) -> Connect:
        """The function that connects to the queue's database."""
        return self._connect

    def call_limit(self) -> CallLimit:
        """A new limit for the calls of a session of this worker."""
        return self._config.call_limit()

    @property
    def is_active(self) -> bool:
        """Whether it runs. False as soon as it stops."""
        runtime = self._runtime
        return runtime is not None and not runtime.stopping.is_set()

    @property
    def is_idle(self) -> bool:
        """Whether, since its start, a poll has found nothing while nothing was in flight."""
        runtime = self._runtime
        return runtime is not None and runtime.idle.is_set()

    def start(self, timeout: timedelta | None = GRACE) -> bool:
        """Starts, and returns once it holds a lease. False if it runs already.

        Raises UnknownTopic, SchemaMismatch and other errors that a retry cannot help, and TimeoutError if it has no
        lease in time.
        """
        with self._lock:
            if self.is_active:
                return False
            if self._runtime is not None:
                self._runtime.stop(0)  # an error of the limiter has stopped its polls
            self._hurried = False
            runtime = WorkerRuntime(
                self._config, self._connect, self._handler, self._limiter, self._listeners, self._counters
            )
            threads: list[WorkerThread]
            if self._config.prefetch:
                threads = prefetching_threads(runtime)
            else:
                threads = [PollLoop(runtime) for _ in range(self._config.workers)]
            runtime.start(threads, None if timeout is None else timeout.total_seconds())
            self._runtime = self._last_runtime = runtime
            return True

    def stop(self, timeout: timedelta | None = GRACE) -> bool:
        """Stops: starts no new batch, waits for batches in flight, and releases the other tasks.

        A timeout of None waits for as long as the batches take. A timeout of 0 also ends the wait of another `stop`. A
        handler that is abandoned runs on, but its decisions are ignored. Returns False if the worker did not run.
        """
        if timeout is not None and not timeout:
            self.hurry()
        with self._lock:
            active = self.is_active
            runtime, self._runtime = self._runtime, None
            if runtime is not None:
                runtime.stop(None if timeout is None else timeout.total_seconds(), lambda: self._hurried)
            return active

    def hurry(self) -> None:
        """Ends the wait of `stop` for batches in flight. A signal handler may call it."""
        self._hurried = True

    def resume(self) -> bool:
        """Ends the pause between polls. False if the worker does not run."""
        runtime = self._runtime
        if runtime is None or not self.is_active:
            return False
        runtime.idle_wait.wake()
        return True

    def statistics(self) -> WorkerStatistics:
        """The counters since the worker was created."""
        return self._counters.snapshot()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until `stop`, or an error of the limiter, stops the worker. False if that took longer."""
        runtime = self._runtime
        return runtime is None or runtime.stopping.wait(timeout)

    def drain(self, max_failed: MaxFailed = None) -> WorkerStatistics:
        """Runs until a poll finds nothing while nothing is in flight, stops, and returns the statistics.

        Tasks that are due later, or wait for a retry, are left. A call of `stop` ends it earlier.

        :param max_failed: limits how many tasks may fail for good: a count (an int) or a share of the tasks that ended
            (a float), see `FailureLimit`. It does not stop the drain. After all decisions are committed,
            TooManyFailures names the counts and the first errors. Failures that the topic's policy retries do not
            count.
        """
        limit = FailureLimit.of(max_failed)
        self.start()
        runtime = self._runtime
        while runtime is not None and not runtime.idle.wait(CHECK_SECONDS) and not runtime.stopping.is_set():
            pass
        self.stop(None)
        if limit is not None and (failure := limit.exceeded(self.topic, self.counts())):
            raise failure
        return self.statistics()

    def counts(self) -> DrainCounts:
        """The tasks that ended here since the last start, and the failed ones, as the database counts them."""
        runtime = self._last_runtime
        if runtime is None or runtime.started is None:
            return DrainCounts(0, 0)
        with closing(self._connect()) as conn:
            return TaskQueue(conn).drain_counts(self.topic, runtime.owner_prefix, runtime.started)

    def run(self, grace: timedelta | None = GRACE) -> None:
        """Runs until SIGTERM or SIGINT, then stops within `grace`, or at once after a second signal."""
        with StopSignals(self.hurry) as signals:
            self.start()
            while not signals.received and not self.wait(CHECK_SECONDS):
                pass
            self.stop(grace)
