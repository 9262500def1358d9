"""Runtime of one worker: its threads and the state that they share, from the start of the worker to its stop."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_taskq.queue import Decision, LeaseLost, Result, Task, verify_for_work
from airflow_provider_taskq.queue.encoding import JsonEncoder, json_text
from airflow_provider_taskq.queue.owner_names import worker_instance_id, worker_owner_name
from airflow_provider_taskq.queue.session import DatabaseSession
from airflow_provider_taskq.worker.batches import Batch, BatchOwner, name_of
from airflow_provider_taskq.worker.config import Groups, WorkerConfig
from airflow_provider_taskq.worker.lease import (
    HandlerStuck,
    InFlightBatch,
    Lease,
    LeaseKeeper,
    UpkeepThread,
    Watchdog,
    give_back,
)
from airflow_provider_taskq.worker.limiter import NO_TOKEN, Token
from airflow_provider_taskq.worker.listener import ListenerDispatcher
from airflow_provider_taskq.worker.services import NotificationListener, PeriodicService
from airflow_provider_taskq.worker.statistics import WorkerCounters

if TYPE_CHECKING:
    from airflow_provider_taskq.worker.loops import Loop

log = logging.getLogger(__name__)

_CHECK_SECONDS = 0.2  # between two checks of `is_hurried`
_AT_ONCE = timedelta(seconds=1)  # the same limit as in taskq_internal.skip_immediate_returns
T = TypeVar("T")


class WorkerStopped(Exception):
    """The worker stopped before a batch was committed."""


class IdleWait:
    """Pauses the threads of a worker. One thread polls periodically, the others sleep until a wake."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._polling = False
        self._wakes = 0
        self._ended = False

    def wakes(self) -> int:
        """Return the number of wakes so far. Read it before a poll: a wake during the poll ends the next wait."""
        return self._wakes

    def sleep(
        self, wakes: int, seconds: float, is_woken: Callable[[], bool] = lambda: False, *, takes_turns: bool = False
    ) -> None:
        """Wait `seconds`, or until a wake after `wakes`.

        :param is_woken: ends the wait of this thread only; called again after `wake_decided`.
        :param takes_turns: whether the time begins when no other thread waits with this option.
        """

        def is_over() -> bool:
            return self._ended or self._wakes > wakes or is_woken()

        with self._changed:
            if takes_turns:
                self._changed.wait_for(lambda: is_over() or not self._polling)
                if is_over():
                    return
                self._polling = True
            self._changed.wait_for(is_over, seconds)
            if takes_turns:
                self._polling = False
                # notify() alone might reach a thread that takes no turns, and no thread would go on with the polls.
                self._changed.notify_all()

    def wait_for(self, find: Callable[[], T], *, or_end: bool = False) -> T:
        """Wait until `find()` returns something true, and return it; with `or_end` return at `end`, too.

        Calls `find` under the lock of this object, again after each `wake_decided`.
        """
        with self._changed:
            while not (found := find()) and not (or_end and self._ended):
                self._changed.wait()
            return found

    def wake_decided(self) -> None:
        """Let the waiting threads call their `is_woken`."""
        with self._changed:
            self._changed.notify_all()

    def wake(self) -> None:
        """Let all waiting threads poll at once."""
        with self._changed:
            self._wakes += 1
            self._changed.notify_all()

    def end(self) -> None:
        """End the waits of all threads. Later waits return at once."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class ReturnedTasks:
    """The tasks of a drain that may come back at once, and their attempts. Any thread may use this object.

    These are snoozes of less than a second, undecided tasks, and failures. A failure within the task's ttl is not
    counted as an attempt. A task that a poll hands out again in the same attempt has come back at once. The drain does
    not handle it again, but holds it until its leases end, so that no other poll of the drain gets it.
    """

    def __init__(self, groups: Groups | None) -> None:
        self._groups = groups
        self._attempts: dict[Task, int] = {}

    def note(self, committed: Mapping[Task, Decision]) -> None:
        """Note the committed decisions after which a task may come back at once."""
        for task, decision in committed.items():
            snoozed = decision.result is Result.SUSPENSION and decision.delay is not None and decision.delay < _AT_ONCE
            if snoozed or decision.result is Result.FAILURE:
                self._attempts[task] = task.attempt

    def without(self, polled: Sequence[Task]) -> Sequence[Task]:
        """Return the polled tasks without those that came back at once."""
        if not self._attempts:
            return polled
        back = {task for task in polled if self._attempts.get(task) == task.attempt}
        if self._groups is not None:  # a group whose task came back is held as a whole, in its order
            identifiers = {task.identifier for task in back}
            back = {task for task in polled if task.identifier in identifiers}
        return [task for task in polled if task not in back]


class WorkerRuntime:
    """Runtime of one worker: owns its threads, from start() to stop()."""

    def __init__(self, config: WorkerConfig, counters: WorkerCounters, *, drains: bool = False) -> None:
        self.config, connect = config, config.connect
        self.handler, self.handler_name = config.work_handler, name_of(config.work_handler)
        self.listeners = ListenerDispatcher(config.listener)
        self.counters = counters
        self.returned = ReturnedTasks(config.groups) if drains else None
        self.idle_wait = IdleWait()
        self.keeper = LeaseKeeper(connect, config.lease.total_seconds(), self._on_lease_lost)
        self.watchdog = Watchdog(config, self.listeners, self.keeper.check_clock)
        self._loops: Sequence[Loop] = ()
        self.has_lease = threading.Event()  # set when a thread holds a lease
        self.idle = threading.Event()  # set when a poll found nothing while no task was in flight
        self.stopping = threading.Event()  # when set, no thread starts another batch
        self.stopped = threading.Event()  # when set, decisions are ignored
        # A batch keeps its token until it is completed, and a poll waits for a token. So with a limiter, a completion
        # must not wait for the next poll. With `prefetch`, the next batch may need no poll.
        self.completes_with_poll = config.limiter is None and config.groups is None and not config.prefetch
        self.started: datetime | None = None  # by the database's clock
        self._encode: JsonEncoder = json_text
        self.error: BaseException | None = None  # of the limiter, which ended all polls
        self._owner_names: list[str] = []
        upkeep = UpkeepThread(self._owner_names, connect, config.lease, config.call_limit())
        self._services: list[PeriodicService] = [self.keeper, upkeep, self.watchdog]
        if config.listen:
            self._services.append(NotificationListener(connect, "taskq", self._on_notification, self.idle_wait.wake))
        self._place = worker_instance_id()
        self.owner_prefix = f"{config.name}/{self._place}"

    def start(self, loops: Sequence["Loop"], timeout: float | None) -> None:
        """Start all threads, and return when one of them holds a lease. Stop them if it raises an error."""
        with closing(self.session()) as session, session.queue() as queue:
            # Raises the error of a worker that cannot work: no server, another schema, no topic, no such condition.
            verify_for_work(queue.conn)
            self.started, self._encode = queue.now(), queue.json_encoder()
            queue.ready(self.config.topic, 1, self.config.condition)
        open_handler = getattr(self.handler, "open", None)
        if open_handler is not None:  # raises the error of a handler that cannot work, before a task is polled
            open_handler()
        try:
            for service in self._services:
                service.start()
            self._loops = loops
            for loop in loops:
                loop.thread.start()
            if not self.has_lease.wait(timeout):
                message = f"worker {self.config.name!r} got no lease within {timeout} seconds"
                raise TimeoutError(message)  # noqa: TRY301 -- it stops the threads as any other error
        except BaseException:
            self.stop(0)
            raise

    def stop(self, timeout: float | None, is_hurried: Callable[[], bool] = lambda: False) -> None:
        """Wait for the batches in flight, at most `timeout` seconds or until `is_hurried()`, and release all leases."""
        if self.stopped.is_set():
            return
        try:
            self.stop_polling()
            self._wait_for_loops(None if timeout is None else time.monotonic() + timeout, is_hurried)
        finally:  # also after KeyboardInterrupt
            self.stopped.set()
            self._release_leases()
            for service in self._services:
                service.stop()
            self.handler.close()

    def stop_polling(self) -> None:
        """End all polls, so that no thread starts another batch."""
        self.stopping.set()
        self.idle_wait.end()

    def _wait_for_loops(self, deadline: float | None, is_hurried: Callable[[], bool]) -> None:
        """Wait until all threads but this one have ended, at most until `deadline`, or until `is_hurried()`."""
        current = threading.current_thread()
        for loop in self._loops:
            while loop.thread.is_alive() and current not in (loop.thread, loop.calling) and not is_hurried():
                left = _CHECK_SECONDS if deadline is None else min(_CHECK_SECONDS, deadline - time.monotonic())
                if left <= 0:
                    return
                loop.thread.join(left)

    def session(self) -> DatabaseSession:
        """Return a new session with the database."""
        return DatabaseSession(self.config.connect, self.config.call_limit())

    def next_owner_name(self) -> str:
        """Return an owner name that was not used before."""
        self._owner_names.append(worker_owner_name(self.config.name, self._place, len(self._owner_names) + 1))
        return self._owner_names[-1]

    def token(self, is_woken: Callable[[], bool]) -> Token | None:
        """Wait for the limiter's token. Return None if the worker stops, or if `is_woken()`."""
        limiter = self.config.limiter
        if limiter is None:
            return NO_TOKEN
        try:
            return limiter.request(lambda: self.stopping.is_set() or is_woken())
        except BaseException as error:  # noqa: BLE001 -- whatever a limiter raises
            self.error = error
            self.listeners.on_fatal(error)
            self.stop_polling()
            return None

    def start_batch(self, tasks: Sequence[Task], fence: int, lease: Lease, token: Token) -> InFlightBatch:
        """Make a batch of polled tasks, or of the first task of a group, and add it to its lease."""
        size = len(tasks) if self.config.groups is None else 1
        owner, trace = BatchOwner(lease.owner.name, fence), self.listeners.on_start(tasks[:size])
        in_flight = InFlightBatch(Batch(tasks[:size], owner, self._encode), lease, token, trace, tasks[size:])
        lease.add(in_flight)
        return in_flight

    def handler_ended(self, batch: InFlightBatch) -> None:
        """Note that the handler, or the Future that it returned, has ended."""
        self.counters.handled(self.watchdog.remove(batch))

    def count_end(self, tasks: int, committed: Mapping[Task, Decision]) -> None:
        """Count the committed decisions of a batch, and the other ones of its tasks as abandoned."""
        if self.returned is not None:
            self.returned.note(committed)
        self.counters.ended(tasks, committed.values())

    def on_abandoned(self, batch: InFlightBatch) -> None:
        """Count, log and report a batch that was taken away from its handler. Its tasks are polled again later."""
        reason = batch.abandoned_for
        if reason is None or isinstance(reason, HandlerStuck):  # its loop commits this failure
            return
        batch.token.release()
        self.count_end(len(batch.tasks), {})
        log.warning("batch abandoned: %s reason=%s", batch.describe(), reason)
        self.listeners.on_error(batch.trace, reason)

    def _on_lease_lost(self, error: LeaseLost) -> None:
        self.counters.add(leases_lost=1)
        self.listeners.on_fatal(error)

    def _release_leases(self) -> None:
        reason = WorkerStopped(f"worker {self.config.name!r} stopped")
        leases, groups, topic = self.keeper.leases, self.config.groups, self.config.topic
        for lease in leases:
            self.keeper.remove(lease)
            for batch in lease.batches:
                batch.abandon(reason)
        with closing(self.session()) as session:
            # After one call without an answer the other leases lapse: each call would delay the stop.
            reachable = all(self.keeper.release(session, lease) for lease in leases)
            if groups is not None and reachable:
                unlock = partial(groups.unlock, topic=topic, holder=self.owner_prefix)
                give_back(session, f"cluster lock of {topic!r}", unlock)

    def _on_notification(self, topic: str) -> None:
        if topic == self.config.topic:
            self.idle_wait.wake()
