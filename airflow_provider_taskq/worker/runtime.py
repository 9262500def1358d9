"""Runtime of one worker: its threads and the state that they share, from the start of the worker to its stop."""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from datetime import datetime
from itertools import repeat
from typing import Any, Protocol

import psycopg

from airflow_provider_taskq.queue import Decision, LeaseLost, Polled, Result, Task, TaskQueueError, verify_for_work
from airflow_provider_taskq.queue.encoding import JsonEncoder, json_text
from airflow_provider_taskq.queue.owner_names import worker_instance_id, worker_owner_name
from airflow_provider_taskq.worker.batches import Batch, BatchOwner, name_of
from airflow_provider_taskq.worker.config import WorkerConfig
from airflow_provider_taskq.worker.connection import Connect, DatabaseSession
from airflow_provider_taskq.worker.groups import Groups, chain_batches
from airflow_provider_taskq.worker.handlers import (
    TaskResultException,
    WorkHandler,
    complete_decisions,
    decision_on,
    failures_of_unreadable,
    is_undecided,
    start_batch,
)
from airflow_provider_taskq.worker.idle_wait import IdleWait
from airflow_provider_taskq.worker.lease import InFlightBatch, Lease, LeaseKeeper, UpkeepThread
from airflow_provider_taskq.worker.limiter import NO_TOKEN, Token
from airflow_provider_taskq.worker.listener import ListenerDispatcher
from airflow_provider_taskq.worker.returns import ReturnedTasks
from airflow_provider_taskq.worker.services import NotificationListener, PeriodicService
from airflow_provider_taskq.worker.statistics import WorkerCounters
from airflow_provider_taskq.worker.watchdog import HandlerStuck, Watchdog

log = logging.getLogger(__name__)

_CHECK_SECONDS = 0.2  # between two checks of `is_hurried`


class WorkerStopped(Exception):
    """The worker stopped before a batch was committed."""


class WorkerLoop(Protocol):
    """A loop of a worker, which runs in a thread of its own. Another thread may take the place of a stuck one."""

    thread: threading.Thread


class WorkerRuntime:
    """Runtime of one worker: owns its threads, from start() to stop()."""

    def __init__(
        self,
        config: WorkerConfig,
        connect: Connect,
        handler: WorkHandler,
        counters: WorkerCounters,
        *,
        drains: bool = False,
    ) -> None:
        self.config = config
        self.connect = connect
        self.handler, self.handler_name = handler, name_of(handler)
        self.listeners = ListenerDispatcher(config.listener)
        self.counters = counters
        self.returned = ReturnedTasks() if drains else None
        self.idle_wait = IdleWait(config.pause.total_seconds())
        self.keeper = LeaseKeeper(connect, config.lease.total_seconds(), self._on_lease_lost)
        self.watchdog = Watchdog(config, self.listeners, self._handler_timed_out, self.keeper.check_clock)
        self._loops: Sequence[WorkerLoop] = ()
        self.has_lease = threading.Event()  # set when a thread holds a lease
        self.idle = threading.Event()  # set when a poll found nothing while no task was in flight
        self.stopping = threading.Event()  # when set, no thread starts another batch
        self.stopped = threading.Event()  # when set, decisions are ignored
        # A batch keeps its token until it is completed, and a poll waits for a token. So with a limiter, a completion
        # must not wait for the next poll.
        self.completes_with_poll = config.limiter is None and config.groups is None
        self.started: datetime | None = None  # by the database's clock
        self._encode: JsonEncoder = json_text
        self.error: BaseException | None = None  # of the limiter, which ended all polls
        upkeep = UpkeepThread(self.keeper.owner_names, connect, config.lease, config.call_limit())
        self._services: list[PeriodicService] = [self.keeper, upkeep, self.watchdog]
        if config.listen:
            self._services.append(NotificationListener(connect, "taskq", self._on_notification, self.idle_wait.wake))
        self._place, self._numbers = worker_instance_id(), itertools.count(1)
        self.owner_prefix = f"{config.name}/{self._place}"

    def start(self, loops: Sequence[WorkerLoop], timeout: float | None) -> None:
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
        for loop in self._loops:
            while (thread := loop.thread).is_alive() and thread is not threading.current_thread() and not is_hurried():
                left = _CHECK_SECONDS if deadline is None else min(_CHECK_SECONDS, deadline - time.monotonic())
                if left <= 0:
                    return
                thread.join(left)

    def rooms(self) -> list[int]:
        """Return how many batches each loop may have open. The sum is what the handler's `open_batches` returns."""
        workers, open_batches = self.config.workers, getattr(self.handler, "open_batches", None)
        total = (open_batches(self.config.size) if open_batches else None) or workers
        return [max(1, total // workers + (number < total % workers)) for number in range(workers)]

    def session(self) -> DatabaseSession:
        """Return a new session with the database."""
        return DatabaseSession(self.connect, self.config.call_limit())

    def next_owner_name(self) -> str:
        """Return an owner name that was not used before."""
        return worker_owner_name(self.config.name, self._place, next(self._numbers))

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

    def start_batch(self, polled: Polled, lease: Lease, token: Token) -> InFlightBatch | None:
        """Count a polled batch and add it to its lease. Return None if a drain has tried all its tasks before."""
        if self.returned is not None:
            fresh = self.returned.without(polled)
            if self.config.groups is not None:  # a group whose task came back is held as a whole, in its order
                held = {task.identifier for task in set(polled).difference(fresh)}
                fresh[:] = [task for task in fresh if task.identifier not in held]
            polled = fresh
        if not polled:
            return None
        self.counters.polled(polled, 1 if self.config.groups is None else len(polled))
        if self.config.groups is None:
            return self._in_flight(polled, polled.fence, lease, token)
        # A group has one token, which goes back with its last batch.
        tokens = [*repeat(NO_TOKEN, len(polled) - 1), token]
        return chain_batches(
            [self._in_flight([task], polled.fence, lease, own) for task, own in zip(polled, tokens, strict=True)]
        )

    def _in_flight(self, tasks: Sequence[Task], fence: int, lease: Lease, token: Token) -> InFlightBatch:
        batch = Batch(tasks, BatchOwner(lease.owner.name, fence), self._encode)
        in_flight = InFlightBatch(batch, lease, token, self.listeners.on_start(tasks))
        lease.add(in_flight)
        return in_flight

    def call_handler(self, in_flight: InFlightBatch) -> Any:
        """Call the handler in this thread. Return what it returns or raises."""
        batch = in_flight.batch
        self.listeners.on_dispatched(in_flight.trace)
        self.watchdog.add(in_flight)
        returned: Any
        try:
            with batch.running(self.handler_name):
                returned = start_batch(self.handler, batch)
        except BaseException as error:  # noqa: BLE001 -- also SystemExit: it ends the batch, not the worker
            returned = error
        if not isinstance(returned, Future):
            self.handler_ended(in_flight)
        return returned

    def handler_ended(self, batch: InFlightBatch) -> None:
        """Note that the handler, or the Future that it returned, has ended."""
        self.counters.handled(self.watchdog.remove(batch))

    def outcome(self, in_flight: InFlightBatch, returned: Any) -> dict[Task, Decision] | BaseException | None:
        """Claim the batch, and return the decisions of its handler, or the error that fails the whole batch.

        Return None if the batch was abandoned before.
        """
        if not in_flight.claim():
            return None
        tasks = in_flight.batch.tasks
        try:
            outcome = complete_decisions(self.handler_name, tasks, _result_of(returned))
        except TaskResultException as error:
            outcome = {**dict.fromkeys(tasks, decision_on(error)), **failures_of_unreadable(tasks)}
        except BaseException as error:  # noqa: BLE001 -- as above
            return error
        if self.returned is None:  # the worker would poll an undecided task again without a pause
            snooze = Decision(Result.SUSPENSION, delay=self.config.pause)
            outcome = {task: snooze if is_undecided(decision) else decision for task, decision in outcome.items()}
        self.listeners.on_callback(in_flight.trace, outcome)
        return outcome

    def count_end(self, tasks: int, committed: Mapping[Task, Decision]) -> None:
        """Count the committed decisions of a batch, and the other ones of its tasks as abandoned."""
        if self.returned is not None:
            self.returned.note(committed)
        self.counters.ended(tasks, committed.values())
        if self.config.prefetch and self.returned is not None and not self.counters.in_flight:
            self.idle_wait.wake()  # the thread that prefetches polls again, and ends the drain

    def on_abandoned(self, batch: InFlightBatch) -> None:
        """Count, log and report a batch that was taken away from its handler. Its tasks are polled again later."""
        batch.token.release()
        self.count_end(len(batch.batch.tasks), {})
        log.warning("batch abandoned: %s reason=%s", batch.describe(), batch.abandoned_for)
        if batch.abandoned_for is not None:
            self.listeners.on_error(batch.trace, batch.abandoned_for)

    def _on_lease_lost(self, error: LeaseLost) -> None:
        self.counters.lease_lost()
        self.listeners.on_fatal(error)

    def _release_leases(self) -> None:
        reason = WorkerStopped(f"worker {self.config.name!r} stopped")
        leases, reachable = self.keeper.leases, True
        for batch in [batch for lease in leases for batch in lease.batches]:
            batch.lease.abandon(batch, reason)
        with closing(self.session()) as session:
            for lease in leases:
                # After one call without an answer the other leases lapse: each call would delay the stop.
                reachable = reachable and self.keeper.release(session, lease)
                self.keeper.remove(lease)
            if self.config.groups is not None and reachable:
                self._unlock(session, self.config.groups)

    def _unlock(self, session: DatabaseSession, groups: Groups) -> None:
        try:
            with session.queue() as queue:
                groups.unlock(queue, self.config.topic, self.owner_prefix)
        except (TaskQueueError, psycopg.Error) as error:
            log.warning("cluster lock not released, it will lapse: topic=%s error=%s", self.config.topic, error)

    def _handler_timed_out(self, batch: InFlightBatch) -> None:
        """Let the loop of a handler that exceeds its limit fail the batch, in another thread if it is stuck."""
        batch.abandon(HandlerStuck(f"the handler took longer than its limit, {self.config.limit}"))
        # The batch may have been abandoned before, with its lease: the thread is stuck all the same.
        if batch.replace_thread is not None and not self.stopped.is_set():
            batch.replace_thread()

    def _on_notification(self, topic: str) -> None:
        if topic == self.config.topic:
            self.idle_wait.wake()


def _result_of(returned: Any) -> Any:
    if isinstance(returned, BaseException):
        raise returned
    return returned.result() if isinstance(returned, Future) else returned
