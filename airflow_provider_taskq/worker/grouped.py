"""Grouped workers: they handle the due tasks of one identifier one after another, each in its own transaction."""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar
from uuid import uuid4

import psycopg

from airflow_provider_taskq.queue import (
    Decision,
    InvalidArgument,
    InvalidTask,
    LeaseLost,
    Owner,
    Result,
    Task,
    TaskQueue,
    TaskQueueError,
    UnreadablePayload,
)
from airflow_provider_taskq.queue.backoff import Backoff
from airflow_provider_taskq.queue.connection import CallLimit
from airflow_provider_taskq.queue.durations import DurationLike, to_timedelta
from airflow_provider_taskq.queue.errors import first_line
from airflow_provider_taskq.queue.faults import Fault, classify
from airflow_provider_taskq.queue.handler_statements import handler_statements
from airflow_provider_taskq.worker.batches import Batch, BatchContext, BatchOwner, Exceptions
from airflow_provider_taskq.worker.connection import (
    HANDLER_STATEMENT_TIMEOUT,
    Connect,
    connection_factory,
    lease_call_limit,
)
from airflow_provider_taskq.worker.handlers import (
    HandlerFailed,
    HandlerOutcome,
    decision_of,
    decision_on,
)
from airflow_provider_taskq.worker.lease import Lease, LeaseKeeper, UpkeepThread
from airflow_provider_taskq.worker.parameters import HandlerFunction
from airflow_provider_taskq.worker.periodic import PeriodicService

log = logging.getLogger(__name__)

_MAX_TIMEOUTS = 3  # of one task in a row, after which its handler is at fault and not the server

Sorter = Callable[[Task], Any]
T = TypeVar("T")
Rules = Mapping[type[BaseException], Decision | Result]
NO_RULES: Rules = {}


class GroupMode(StrEnum):
    """What a grouped worker does with the later tasks of a group after an error."""

    ALL = "all"  # handles them
    FAIL_FIRST = "fail_first"  # releases them until the next run


@dataclass(slots=True)
class GroupedRun:
    """The counts of one run: groups, and tasks that succeeded, failed, or were left for the next run."""

    groups: int = 0
    succeeded: int = 0
    failed: int = 0
    left: int = 0


def by_sequence(task: Task) -> int:
    """Return the default sort key of a group's tasks: the order in which they were pushed."""
    return task.sequence


class GroupedWorker(PeriodicService):
    """Handles a topic's tasks periodically, in groups of one identifier, each task in a transaction of its own.

    The handler takes a task. If it has a parameter `queue`, it gets the queue of the transaction that completes the
    task. A parameter `batch` gets an object with `owner`. It decides as the handler of a `Worker` does. It may return a
    `concurrent.futures.Future` of its decision, which any thread may complete; `stop` waits for it. A run skips a group
    while one of its tasks waits for a retry or has no attempts left. While the worker runs, it carries out upkeep, as a
    `Worker` does.

    Each duration is a timedelta, a number of seconds, or a text such as `6s` or `PT6S`.

    :param dsn: see `Worker`.
    :param mode: what a run does with the later tasks of a group after an error.
    :param size: tasks of each group that a run handles; -1 for all. These are the first ones in polled order, or by
        `sorter`.
    :param groups: groups that a run handles.
    :param pause: time between two runs. After a run with the full number of groups, the next one starts at once if
        `size` is -1. With another size there is always a pause, so that a task sees the effects of the one before it.
    :param initial_delay: time from the start to the first run.
    :param lease: see `Worker`.
    :param sorter: a function of a task that returns its sort key within the group; by default the sequence. To sort by
        another key, a run claims whole groups, and releases the tasks beyond `size`.
    :param rules: decisions by type of error; the first match wins. Other errors are FAILURE, which the topic's policy
        may retry. After an error with the decision SUCCESS the group goes on.
    :param success_on: types of errors that mean SUCCESS, unless a rule matches.
    :param cleanup: time between removals of expired errors (see `TaskQueue.purge_past_ttl`); None for no removals.
    :param cleanup_initial_delay: time from the start to the first removal.
    :param cluster_lock: lets one program at a time handle the topic, while the others skip their runs. A run releases
        the lock at its end. After a crash the lock lapses when this time is over, so it must be longer than any run.
        With None, several programs handle different groups at once.
    :param owner: the name of the owner; by default it has the topic, the host and the process.
    :param call_timeout: see `Worker`.
    :param handler_statement_timeout: the same for the statements of a handler that takes the queue.
    """

    def __init__(
        self,
        dsn: str | Connect | None,
        topic: str,
        handler: Callable[..., HandlerOutcome | Future[Any]],
        *,
        mode: GroupMode | str = GroupMode.ALL,
        size: int = -1,
        groups: int = 100,
        pause: DurationLike = timedelta(seconds=6),
        initial_delay: DurationLike = timedelta(0),
        lease: DurationLike = timedelta(minutes=5),
        sorter: Sorter = by_sequence,
        rules: Rules = NO_RULES,
        success_on: Exceptions = (),
        cleanup: DurationLike | None = None,
        cleanup_initial_delay: DurationLike = timedelta(0),
        cluster_lock: DurationLike | None = None,
        owner: str | None = None,
        call_timeout: DurationLike | None = None,
        handler_statement_timeout: DurationLike = HANDLER_STATEMENT_TIMEOUT,
    ) -> None:
        if groups < 1 or size < -1:
            raise InvalidArgument("groups must be at least 1, and size at least 0, or -1 for whole groups")
        self.topic, self.mode, self.size = topic, GroupMode(mode), size
        self.name = owner or f"batches {topic} {socket.gethostname()} {os.getpid()} {uuid4().hex[:8]}"
        self._handler = HandlerFunction.of(handler, "a grouped worker", ("batch", "queue"))
        self._groups, self._pause, self._lease = groups, to_timedelta(pause).total_seconds(), to_timedelta(lease)
        self._sorter, self._rules, self._success_on = sorter, rules, success_on
        self._initial_delays = to_timedelta(initial_delay), to_timedelta(cleanup_initial_delay)
        self._cleanup, self._cluster_lock = to_timedelta(cleanup), to_timedelta(cluster_lock)
        self._run_due = self._cleanup_due = 0.0  # by time.monotonic(); start() sets both
        self._seconds: list[float] = []  # of each handled task
        self._unsortable: dict[Task, Exception] = {}
        self._context = BatchContext()  # of the groups of the current run
        self._timeouts: dict[Task, tuple[int, BaseException | None]] = {}
        self._call_timeouts = to_timedelta(call_timeout), to_timedelta(handler_statement_timeout)
        self._running = threading.Lock()
        self._runner: threading.Thread | None = None  # the thread that holds the lock
        connect = connection_factory(dsn, self._lease)
        super().__init__(f"grouped worker {topic}", connect, self._pause, self._call_limit())

    def start(self) -> None:
        """Start the thread; the first run follows after `initial_delay`. Raises TaskQueueError if it runs already."""
        if not self.is_running:
            now = time.monotonic()
            self._run_due, self._cleanup_due = (now + delay.total_seconds() for delay in self._initial_delays)
        super().start()

    def stop(self, timeout: float | None = None) -> bool:
        """Stop after the current group. Return False if it takes longer than `timeout` seconds; None for no limit."""
        return super().stop(timeout)

    def run_once(self) -> GroupedRun:
        """Handle the groups that are due now. Do nothing if another program holds the cluster lock.

        A worker has one run at a time: a call from another thread than the worker's waits for the current run.

        :raises TaskQueueError: if a handler of this worker makes the call.
        """
        result = GroupedRun()
        upkeep = nullcontext() if self.is_running else self._upkeep()
        with self._exclusive(), upkeep, self._queue_for_once() as queue, self._locked(queue) as may_run:
            if not may_run:
                return result
            owner = queue.register(self.name, self._lease, resume=False)
            keeper = LeaseKeeper(self._connect, self._lease.total_seconds(), self._on_lease_lost)
            keeper.add(Lease(owner))
            keeper.start()
            try:
                for group in self._poll_groups(queue, owner):
                    result.groups += 1
                    self._handle_group(queue, owner, group, result)
            finally:
                keeper.stop()
                if not queue.conn.closed:
                    queue.release(owner)
            seconds, self._seconds = self._seconds, []
            if seconds:
                queue.record_handling_times(self.topic, seconds)
        return result

    def _run(self) -> None:
        with self._upkeep():
            super()._run()

    def _run_once(self) -> float:
        if self._cleanup is not None and self._cleanup_due <= time.monotonic():
            self._cleanup_due = time.monotonic() + self._cleanup.total_seconds()
            with self._session.queue() as queue:
                queue.purge_past_ttl(self.topic)
        if self._run_due <= time.monotonic():
            result = self.run_once()
            has_more = self.size < 0 and result.groups == self._groups and result.succeeded
            self._run_due = time.monotonic() + (0.0 if has_more else self._pause)
        due = self._run_due if self._cleanup is None else min(self._run_due, self._cleanup_due)
        return max(0.0, due - time.monotonic())

    def _on_lease_lost(self, error: LeaseLost) -> None:
        log.warning("lease lost: topic=%s owner=%s error=%s", self.topic, self.name, error)

    def _call_limit(self) -> CallLimit:
        return lease_call_limit(self._lease, *self._call_timeouts)

    @contextmanager
    def _upkeep(self) -> Iterator[None]:
        """Carry out upkeep in the block, in a thread."""
        upkeep = UpkeepThread(lambda: [self.name], self._connect, self._lease, self._call_limit())
        upkeep.start()
        try:
            yield
        finally:
            upkeep.stop()

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Wait for the run of another thread: a second registration of the owner would end the lease of the first."""
        if self._runner is threading.current_thread():
            raise TaskQueueError(f"{self._service_name}: a handler cannot start another run of its worker")
        with self._running:
            self._runner = threading.current_thread()
            try:
                yield
            finally:
                self._runner = None

    @contextmanager
    def _locked(self, queue: TaskQueue) -> Iterator[bool]:
        """Hold the cluster lock in the block. Yield False if another program holds it."""
        if self._cluster_lock is None:
            yield True
            return
        name = f"batches {self.topic}"
        locked = queue.lock(name, self.name, self._cluster_lock)
        try:
            yield locked
        finally:
            if locked and not queue.conn.closed:
                queue.unlock(name, self.name)

    def _poll_groups(self, queue: TaskQueue, owner: Owner) -> list[list[Task]]:
        """Poll groups and sort their tasks. Release the tasks beyond `size` in the same transaction."""
        self._unsortable = {}
        claims_whole = self.size > 0 and self._sorter is not by_sequence  # the sorter has to see all tasks of a group
        with queue.conn.transaction():
            polled = queue.poll_batch(self.topic, owner, self._groups, -1 if claims_whole else self.size)
            if polled:
                self._context = BatchContext(BatchOwner(owner.name, queue.draw_fence(owner)))
            groups = [self._sorted(group) for group in polled.values()]
            if claims_whole:
                queue.release_tasks(owner, [task for group in groups for task in group[self.size :]])
                groups = [group[: self.size] for group in groups]
        return groups

    def _sorted(self, group: list[Task]) -> list[Task]:
        """Sort a group. Tasks for which the sorter fails come first, so that `_call_handler` fails them."""
        keys: dict[Task, Any] = {}
        for task in group:
            try:
                if isinstance(task.payload, UnreadablePayload):
                    raise InvalidTask(task.payload.reason)  # noqa: TRY301 -- fails this task, as a sorter error does
                keys[task] = self._sorter(task)
            except Exception as error:  # noqa: BLE001 -- any error of the sorter fails this task
                self._unsortable[task] = error
        try:
            ordered = sorted(keys, key=keys.__getitem__)
        except Exception as error:  # noqa: BLE001 -- the keys cannot be compared: all tasks fail
            self._unsortable |= dict.fromkeys(keys, error)
            return group
        return [task for task in group if task not in keys] + ordered

    def _handle_group(self, queue: TaskQueue, owner: Owner, group: list[Task], result: GroupedRun) -> None:
        ends_group = False
        for place, task in enumerate(group):
            if self.is_stopping or ends_group:
                queue.release_tasks(owner, group[place:])
                result.left += len(group) - place
                return
            began = time.monotonic()
            try:
                succeeded = self._handle_task(queue, owner, task)
            finally:
                self._seconds.append(time.monotonic() - began)
            result.succeeded += succeeded
            result.failed += not succeeded
            ends_group = not succeeded and self.mode is GroupMode.FAIL_FIRST

    def _handle_task(self, queue: TaskQueue, owner: Owner, task: Task) -> bool:
        """Commit the decision of the handler, or the decision on its error. Return True for a success."""
        try:
            if "queue" in self._handler.names:
                decision = self._retry_commit(lambda: self._handle_in_transaction(queue, owner, task))
            else:
                decision = self._call_handler(task)
                self._retry_commit(lambda: queue.complete(owner, {task: decision}))
        except (HandlerFailed, psycopg.IntegrityError) as failed:  # the latter of a deferred constraint, at the commit
            if queue.conn.closed:
                self._count_timeout(task, failed.__cause__)
                raise
            error = failed.__cause__ or failed
            on_error = self._decision_on(error)
            succeeded = on_error.result is Result.SUCCESS
            level, kind = logging.DEBUG if succeeded else logging.WARNING, type(error).__name__
            log.log(level, "task failed: topic=%s sequence=%s error=%s", task.topic, task.sequence, kind)
            self._retry_commit(lambda: queue.complete(owner, {task: on_error}))
            return succeeded
        return decision.result is not Result.FAILURE

    def _handle_in_transaction(self, queue: TaskQueue, owner: Owner, task: Task) -> Decision:
        with queue.conn.transaction():
            with handler_statements(queue.conn):
                decision = self._call_handler(task, queue)
            queue.complete(owner, {task: decision})
        return decision

    def _call_handler(self, task: Task, queue: TaskQueue | None = None) -> Decision:
        """Call the handler. Raises HandlerFailed for its errors, and for the last of several timeouts in a row."""
        count, reason = self._timeouts.get(task, (0, None))
        if count >= _MAX_TIMEOUTS:
            del self._timeouts[task]
            raise HandlerFailed from reason
        try:
            if (error := self._unsortable.get(task)) is not None:
                raise error  # noqa: TRY301 -- the task fails with the error of the sorter
            outcome = self._handler(task, batch=self._context, queue=queue)
            decision = decision_of(Batch([task]).result_of(outcome, self._handler.name))
        except (Exception, SystemExit) as error:
            if isinstance(error, SystemExit) and threading.current_thread() is threading.main_thread():
                raise  # a signal handler may have raised it
            raise HandlerFailed from error
        self._timeouts.pop(task, None)
        return decision

    def _count_timeout(self, task: Task, error: BaseException | None) -> None:
        """Count an error of a statement or a transaction that exceeded its time limit, which ends the connection."""
        if error is not None and classify(error) is Fault.TIMEOUT:
            self._timeouts[task] = (self._timeouts.get(task, (0, error))[0] + 1, error)

    def _retry_commit(self, commit: Callable[[], T]) -> T:
        """Commit, and retry after transient errors, until LeaseLost or a stop.

        A retry calls a handler that takes the queue again, because the error has undone its writes.
        """
        backoff = Backoff()
        while True:
            try:
                return commit()
            except psycopg.Error as error:
                if classify(error) not in (Fault.RETRY, Fault.SHORTAGE) or self._sleep(backoff.next()):
                    raise
                named = (self.topic, type(error).__name__, first_line(error))
                log.warning("task not committed, will retry: topic=%s error=%s: %s", *named)

    def _decision_on(self, error: BaseException) -> Decision:
        for kind, outcome in self._rules.items():
            if isinstance(error, kind):
                decision = decision_of(outcome)
                keeps_error = decision.error is None and decision.result is not Result.SUCCESS
                return replace(decision, error=error) if keeps_error else decision
        return decision_on(error, self._success_on)
