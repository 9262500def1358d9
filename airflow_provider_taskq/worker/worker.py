"""The worker: polls a topic and has its tasks handled, until it is stopped."""

import threading
from contextlib import closing
from datetime import timedelta

from airflow_provider_taskq.queue import Condition, DrainCounts, FailureLimit, MaxFailed, Order, TaskQueue
from airflow_provider_taskq.queue.connection import CallLimit
from airflow_provider_taskq.queue.durations import DurationLike, to_timedelta
from airflow_provider_taskq.worker.batches import Rewrite
from airflow_provider_taskq.worker.config import Pending, Settings
from airflow_provider_taskq.worker.connection import HANDLER_STATEMENT_TIMEOUT, Connect, connects_to
from airflow_provider_taskq.worker.handlers import TaskFunction, WorkHandler, handler_of
from airflow_provider_taskq.worker.limiter import Limiter, NoLimit
from airflow_provider_taskq.worker.listener import Telling, WorkerListener
from airflow_provider_taskq.worker.poll_loop import Lane
from airflow_provider_taskq.worker.prefetch import employ_buffered
from airflow_provider_taskq.worker.runtime import WorkerRuntime
from airflow_provider_taskq.worker.signals import LOOK, Signals
from airflow_provider_taskq.worker.statistics import Counters, WorkerStatistics

GRACE = timedelta(seconds=30)


class Worker:
    """Polls a topic, has a handler decide on what it finds, and commits that, in threads of its own.

    `dsn`: of the queue's database, a function that connects to it, or None for the environment's.
    `handler`: a function `task -> Decision | Result | None`, a handler made by `each` or `batch`, a Composite.
    `size`: tasks in a batch; one batch is one transaction. `workers`: batches handled at a time.
    `prefetch`: tasks kept polled ahead for the workers (0: each polls for itself), and `pending` what becomes of those
    when the worker stops. `limiter`: how many batches may be in flight, where several workers share that.
    `pause`: between empty polls, unless `resume` or a notification comes. `lease`: for how long tasks are kept
    from others when this process dies. `slow_after`, `report_every`: when a handler that takes long is reported, with
    its stack; `limit`: when its batch is FAILED, and its thread left behind. `rewrite`: of tasks that follow others,
    such as `tagged`. `name`: who this is in owners' names, the topic unless said.
    `call_timeout`: how long the worker waits for an answer of the database before it opens another connection; a third
    of the lease by default, 5 seconds at least. `handler_statement_timeout`: the same for statements of participants.
    Each duration is a timedelta, a number of seconds, or a text such as `90s`, `5m` or `PT5M`.
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
        self._connect = connects_to(dsn, to_timedelta(lease))
        self._handler = handler_of(handler)
        self._limiter = limiter or NoLimit()
        self._telling = Telling(listener)
        self._counters = Counters()
        self._settings = Settings(
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
        self._shift: WorkerRuntime | None = None
        self._last: WorkerRuntime | None = None  # also when it has stopped
        self._hurried = False
        self._lock = threading.RLock()  # a signal handler may stop what is being started or stopped

    @property
    def topic(self) -> str:
        """The topic that it polls."""
        return self._settings.topic

    @property
    def name(self) -> str:
        """What it is called."""
        return self._settings.name

    @property
    def connect(self) -> Connect:
        """How it reaches the queue's database."""
        return self._connect

    def call_limit(self) -> CallLimit:
        """A limit for calls of a session of this worker."""
        return self._settings.call_limit()

    @property
    def is_active(self) -> bool:
        """Whether it works, or waits for work."""
        shift = self._shift
        return shift is not None and not shift.stopping.is_set()

    @property
    def is_idle(self) -> bool:
        """Whether, since it was started, a poll has found nothing while nothing was in flight."""
        shift = self._shift
        return shift is not None and shift.idle.is_set()

    def start(self, timeout: timedelta | None = GRACE) -> bool:
        """Begins to work; False where it does already.

        Returns once it holds a lease; raises UnknownTopic, SchemaMismatch and what else makes it useless, and
        TimeoutError where there is no lease in time.
        """
        with self._lock:
            if self.is_active:
                return False
            if self._shift is not None:
                self._shift.stop(0)  # its limiter ended it
            self._hurried = False
            shift = WorkerRuntime(
                self._settings, self._connect, self._handler, self._limiter, self._telling, self._counters
            )
            employed = (
                employ_buffered(shift)
                if self._settings.prefetch
                else [Lane(shift) for _ in range(self._settings.workers)]
            )
            shift.start(employed, None if timeout is None else timeout.total_seconds())
            self._shift = self._last = shift
            return True

    def stop(self, timeout: timedelta | None = GRACE) -> bool:
        """Ends: begins nothing new, lets batches in flight end in that time, and gives back all that it still holds.

        None waits for as long as they take; no time at all hurries a stop that goes on already, too. A handler that is
        given up runs on, but nothing that it decides counts. False where the worker did not work.
        """
        if timeout is not None and not timeout:
            self.hurry()
        with self._lock:
            active = self.is_active
            shift, self._shift = self._shift, None
            if shift is not None:
                shift.stop(None if timeout is None else timeout.total_seconds(), lambda: self._hurried)
            return active

    def hurry(self) -> None:
        """Lets a stop that waits for batches in flight wait no more. May be called by a signal handler."""
        self._hurried = True

    def resume(self) -> bool:
        """Lets a worker that pauses look at once; False where it does not work."""
        shift = self._shift
        if shift is None or not self.is_active:
            return False
        shift.pause.wake()
        return True

    def statistics(self) -> WorkerStatistics:
        """What it has done since it was made."""
        return self._counters.snapshot()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it is stopped, or its limiter ended it; False where that took longer."""
        shift = self._shift
        return shift is None or shift.stopping.wait(timeout)

    def drain(self, max_failed: MaxFailed = None) -> WorkerStatistics:
        """Works until a poll finds nothing while nothing is in flight, and stops; what it has done since it was made.

        Tasks that are due later, or wait to be retried, are left. Ends earlier where `stop` is called meanwhile.
        `max_failed` limits how many tasks may fail for good: a count (an int) or a share of the tasks that ended (a
        float), see `FailureLimit`. It stops nothing; once all decisions are committed, TooManyFailures names the counts
        and the first errors. Failures that the topic's policy retries do not count.
        """
        limit = FailureLimit.of(max_failed)
        self.start()
        shift = self._shift
        while shift is not None and not shift.idle.wait(LOOK) and not shift.stopping.is_set():
            pass
        self.stop(None)
        if limit is not None and (failure := limit.exceeded(self.topic, self.counts())):
            raise failure
        return self.statistics()

    def counts(self) -> DrainCounts:
        """The tasks that this worker has ended since its last start, and the failed ones, as the database has them."""
        last = self._last
        if last is None or last.started is None:
            return DrainCounts(0, 0)
        with closing(self._connect()) as conn:
            return TaskQueue(conn).drain_counts(self.topic, last.owners, last.started)

    def run(self, grace: timedelta | None = GRACE) -> None:
        """Works until SIGTERM or SIGINT, then stops within `grace`, at once at a second signal. For the main thread."""
        with Signals(self.hurry) as signals:
            self.start()
            while not signals.told and not self.wait(LOOK):
                pass
            self.stop(grace)
