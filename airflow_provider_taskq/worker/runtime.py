"""A shift: from one start of a worker to its stop. What its threads share, and how they come and go."""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

import psycopg

from airflow_provider_taskq.queue import Task, TaskQueueError
from airflow_provider_taskq.queue.owner_names import worker_instance_id, worker_owner_name
from airflow_provider_taskq.worker.batches import Batch
from airflow_provider_taskq.worker.config import Settings
from airflow_provider_taskq.worker.connection import Connect, Disconnected, Session
from airflow_provider_taskq.worker.finishing import WorkerStopped
from airflow_provider_taskq.worker.handlers import WorkHandler
from airflow_provider_taskq.worker.lease import Lease, Run
from airflow_provider_taskq.worker.lease_keeper import LeaseKeeper
from airflow_provider_taskq.worker.limiter import Limiter, NoLimit, Token
from airflow_provider_taskq.worker.listener import Telling
from airflow_provider_taskq.worker.notifications import NotificationListener
from airflow_provider_taskq.worker.patience import Pause, left
from airflow_provider_taskq.worker.statistics import Counters
from airflow_provider_taskq.worker.watchdog import HandlerStuck, Watch, batch_in_words

log = logging.getLogger(__name__)

_LOOK = 0.2  # seconds between two looks whether a stop is in a hurry now


class Employed(Protocol):
    """What works in a shift, in a thread."""

    thread: threading.Thread


class WorkerRuntime:
    """The threads of a worker between start and stop, and what they share."""

    def __init__(
        self,
        settings: Settings,
        connect: Connect,
        handler: WorkHandler,
        limiter: Limiter,
        telling: Telling,
        counters: Counters,
    ) -> None:
        self.settings = settings
        self.connect = connect
        self.handler = handler
        self.telling = telling
        self.counters = counters
        self.pause = Pause(settings.pause.total_seconds())
        self.keeper = LeaseKeeper(connect, settings.lease.total_seconds(), telling.on_fatal, settings.call_limit())
        self.watch = Watch(
            telling,
            settings.slow_after.total_seconds(),
            settings.report_every.total_seconds(),
            settings.limit.total_seconds() if settings.limit else None,
            self._over_limit,
        )
        self.begun = threading.Event()  # some thread has a lease
        self.idle = threading.Event()  # at some time nothing was found while nothing was in flight
        self.stopping = threading.Event()  # nothing new is begun
        self.over = threading.Event()  # nothing counts any more
        self.may_exchange = isinstance(limiter, NoLimit)
        self._limiter = limiter
        self._notices = (
            NotificationListener(connect, "taskq", self._heard, self.pause.wake) if settings.listen else None
        )
        self._watching = threading.Thread(target=self._look, name="taskq watch", daemon=True)
        self.on_stopping: list[Callable[[], None]] = []
        self._employed: set[Employed] = set()
        self._changed = threading.Condition()
        place = worker_instance_id()
        self.owners = f"{settings.name}/{place}"  # what the names of its owners begin with
        self.started: datetime | None = None  # by the database's clock
        self._names = (worker_owner_name(settings.name, place, number) for number in itertools.count(1))

    def start(self, employed: Sequence[Employed], timeout: float | None) -> None:
        """Begins, and returns once a thread has its lease; TimeoutError where none has in time, and nothing goes on."""
        self._try()
        self.keeper.start()
        self._watching.start()
        if self._notices is not None:
            self._notices.start()
        for each in employed:
            self.employ(each)
        if not self.begun.wait(timeout):
            self.stop(0)
            raise TimeoutError(f"worker {self.settings.name!r} did not begin within {timeout} seconds")

    def stop(self, timeout: float | None, hurried: Callable[[], bool] = lambda: False) -> None:
        """Lets batches in flight end, for so many seconds; gives up those that have not, and all that is held.

        `hurried()` is looked at now and then: true ends the wait.
        """
        self.end()
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while self._others() and not hurried() and left(deadline) != 0:
                self._changed.wait(min(_LOOK, left(deadline) or _LOOK))
        self.over.set()
        self._give_up_rest()
        self.keeper.stop()
        if self._notices is not None:
            self._notices.stop()
        if self._watching is not threading.current_thread():
            self._watching.join()
        self.handler.close()

    def end(self) -> None:
        """Begins nothing new from now on."""
        self.stopping.set()
        self.pause.end()
        for call in self.on_stopping:
            call()

    def employ(self, newcomer: Employed) -> None:
        """One more thread."""
        with self._changed:
            self._employed.add(newcomer)
        newcomer.thread.start()

    def left(self, leaver: Employed) -> None:
        """A thread ends, or is left behind."""
        with self._changed:
            self._employed.discard(leaver)
            self._changed.notify_all()

    def owner_name(self) -> str:
        """A name for one more owner, which nobody had before."""
        with self._changed:
            return next(self._names)

    def token(self) -> Token | None:
        """The right to one more batch in flight; None where the worker stops. An error of the limiter ends it all."""
        try:
            return self._limiter.request(self.stopping.is_set)
        except Exception as error:  # noqa: BLE001 -- whatever a limiter raises
            self.telling.on_fatal(error)
            self.end()
            return None

    def begin(self, tasks: Sequence[Task], tenure: Lease, token: Token) -> Run:
        """A batch was polled."""
        run = Run(Batch(tasks, self.settings.rewrite), tenure, token, self.telling.on_start(tasks))
        self.counters.taken(len(tasks))
        tenure.enter(run)
        return run

    def session(self) -> Session:
        """One more session with the database."""
        return Session(self.connect, self.settings.call_limit())

    def found_nothing(self) -> None:
        """A poll found nothing."""
        self.telling.on_empty()

    def given_up(self, run: Run) -> None:
        """A batch was taken from its handler: it comes again, here or elsewhere."""
        run.token.release()
        self.counters.ended(len(run.batch.tasks), ())
        log.warning("%s was given up: %s", batch_in_words(run), run.reason)
        if run.reason is not None:
            self.telling.on_error(run.trace, run.reason)

    def dismiss(self, session: Session, tenure: Lease) -> bool:
        """Ends a lease, whose tasks are given back; False where the database cannot be reached."""
        self.keeper.remove(tenure)
        try:
            with session.queue() as queue:
                queue.release(tenure.owner)
        except (TaskQueueError, psycopg.Error) as error:
            log.warning("The lease of %r was not given back, and will lapse: %s", tenure.owner.name, error)
            return not isinstance(error, Disconnected)
        return True

    def _try(self) -> None:
        """Refuses to begin what can't work: no server, no schema, no topic, no such condition."""
        session = self.session()
        try:
            with session.queue() as queue:
                self.started = queue.now()
                queue.ready(self.settings.topic, 1, self.settings.condition)
        finally:
            session.close()

    def _others(self) -> bool:
        """Whether anybody is at work beside whoever asks, which may be one of them."""
        return any(each.thread is not threading.current_thread() for each in self._employed)

    def _give_up_rest(self) -> None:
        """Gives up what is in flight still, and gives back all that is held."""
        reason = WorkerStopped(f"worker {self.settings.name!r} stopped")
        session = self.session()
        tenures, reachable = self.keeper.tenures(), True
        for run in [run for tenure in tenures for run in tenure.runs()]:
            run.tenure.give_up(run, reason)
        for tenure in tenures:
            reachable = reachable and self.dismiss(session, tenure)
            self.keeper.remove(tenure)
        session.close()

    def _over_limit(self, run: Run) -> None:
        """A handler takes too long: its batch is FAILED by the thread that takes its place.

        A thread is replaced, too, where its batch was given up before, as its lease was lost; none is where its handler
        has just ended.
        """
        limit = self.settings.limit
        to_fail = run.give_up(HandlerStuck(f"the handler took longer than its limit, {limit}"))
        is_stuck = to_fail or self.watch.is_handled(run)
        if run.hand is not None and is_stuck and not self.over.is_set():
            run.hand.hand_over(run, to_fail)

    def _heard(self, topic: str) -> None:
        """A topic has something new."""
        if topic == self.settings.topic:
            self.pause.wake()

    def _look(self) -> None:
        """What the watching thread does; it touches no network."""
        while not self.over.wait(self.watch.tick):
            try:
                self.watch.look()
                self.keeper.check_clock()
            except Exception:
                log.exception("The watch of worker %r failed, and goes on", self.settings.name)
