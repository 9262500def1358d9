"""Batches by identifier: the tasks of one identifier are handled together, each in a transaction of its own."""

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
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
    Owner,
    Result,
    Task,
    TaskQueue,
    UnreadablePayload,
)
from airflow_provider_taskq.queue.durations import DurationLike, to_timedelta
from airflow_provider_taskq.queue.errors import is_session_timeout, is_transient
from airflow_provider_taskq.worker.batches import Batch
from airflow_provider_taskq.worker.connection import (
    HANDLER_STATEMENT_TIMEOUT,
    Connect,
    call_limit,
    connects_to,
    heartbeat_limit,
)
from airflow_provider_taskq.worker.futures import result_of
from airflow_provider_taskq.worker.handlers import (
    Exceptions,
    Outcome,
    decision_of,
    decision_on,
    name_of,
    takes_batch,
)
from airflow_provider_taskq.worker.patience import BackOff
from airflow_provider_taskq.worker.periodic import Routine

log = logging.getLogger(__name__)

_CUT_OFFS = 3
_AGAIN = 0.5  # seconds after a heartbeat that did not get through

Sorter = Callable[[Task], Any]
T = TypeVar("T")
Rules = Mapping[type[BaseException], Decision | Result]
NO_RULES: Rules = {}


class _HandlerFailed(Exception):
    """The handler raised its cause."""


class GroupMode(StrEnum):
    """What an error does to the rest of its group: nothing, or it waits for the next time."""

    ALL = "all"
    FAIL_FIRST = "fail_first"


@dataclass(slots=True)
class GroupedRun:
    """What a run did: groups, and tasks that succeeded, failed, or were left for the next time."""

    groups: int = 0
    succeeded: int = 0
    failed: int = 0
    left: int = 0


def by_sequence(task: Task) -> int:
    """The order of a group unless another is said: that of their pushes."""
    return task.sequence


class GroupedWorker(Routine):
    """Handles a topic's tasks by groups of one identifier, every so often.

    The handler takes a task, or a task and the queue of the transaction that ends it, and decides as a worker's does.
    It may return a `concurrent.futures.Future` of its decision, which any thread may complete; `stop` waits for it.
    An error is a FAILURE, retried by the topic's policy, or what `rules` say of its kind; `mode` says what becomes of
    the rest of the group. An error that is one of `success_on`, or for which a rule says SUCCESS, is a success: it
    counts as one, and the group goes on. A group with an error that is not due yet, or that has no attempts left, is
    kept back whole.
    `size`: how many of each group are handled in a run, -1 for all. `groups`: how many are taken at once.
    `pause`: time between two runs. With `size=-1` a run that found as many groups as it takes is followed by the next
    one at once; with another size never, so that a task waits for the effects of the task before it.
    `initial_delay`: time from the start to the first run. `cleanup`: how often errors that have expired are removed
    (see `TaskQueue.purge_past_ttl`), None for never; the first time is `cleanup_initial_delay` after the start.
    `cluster_lock`: lets one program at a time handle the topic; the others skip their runs meanwhile. A run that ends
    gives the lock back. After a crash the lock is free once this time is over: it has to be longer than any run. None:
    several programs at once handle different groups. `call_timeout` and
    `handler_statement_timeout` as of a Worker; the second is for statements of a handler that takes the queue.
    Each duration is a timedelta, a number of seconds, or a text such as `6s` or `PT6S`.
    """

    def __init__(
        self,
        dsn: str | Connect | None,
        topic: str,
        handler: Callable[..., Outcome | Future[Any]],
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
            raise InvalidArgument("groups is 1 or more, size -1 for whole groups, else 0 or more")
        self.topic, self.mode, self.size = topic, GroupMode(mode), size
        self.name = owner or f"batches {topic} {socket.gethostname()} {os.getpid()} {uuid4().hex[:8]}"
        self._handler, self._takes_queue = handler, takes_batch(handler)
        self._groups, self._pause, self._lease = groups, to_timedelta(pause).total_seconds(), to_timedelta(lease)
        self._sorter, self._rules, self._success_on = sorter, rules, success_on
        self._initial_delays = to_timedelta(initial_delay), to_timedelta(cleanup_initial_delay)
        self._cleanup, self._cluster_lock = to_timedelta(cleanup), to_timedelta(cluster_lock)
        self._run_due = self._cleanup_due = 0.0  # by time.monotonic(); start() sets both
        self._owner: Owner | None = None
        self._connect = connects_to(dsn, self._lease)
        self._seconds: list[float] = []
        self._unsortable: dict[Task, Exception] = {}
        self._cut_offs: dict[Task, tuple[int, BaseException | None]] = {}
        limit = call_limit(self._lease, to_timedelta(call_timeout), to_timedelta(handler_statement_timeout))
        super().__init__(f"batches {topic}", self._connect, self._poll, self._pause, limit)

    def start(self) -> None:
        """Begins after the initial delays, in a thread of its own; TaskQueueError if it runs already."""
        if not self.is_running:
            now = time.monotonic()
            self._run_due, self._cleanup_due = (now + delay.total_seconds() for delay in self._initial_delays)
        super().start()

    def run_once(self) -> GroupedRun:
        """One run: takes groups that may go out, handles them, and says what came of it.

        Does nothing if another program holds the cluster lock.
        """
        tally = GroupedRun()
        with self._queue_for_once() as queue, self._locked(queue) as may_run:
            if not may_run:
                return tally
            self._owner = queue.register(self.name, self._lease)
            keeper = Keeper(self._connect, self._owner)
            keeper.start()
            try:
                for group in self._polled(queue, self._owner):
                    tally.groups += 1
                    self._handle(queue, self._owner, group, tally)
            finally:
                keeper.stop(5)
                if not queue.conn.closed:
                    queue.release(self._owner)
            self._note(queue)
        return tally

    @contextmanager
    def _locked(self, queue: TaskQueue) -> Iterator[bool]:
        """Holds the cluster lock for a run; False if another program holds it."""
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

    def _polled(self, queue: TaskQueue, owner: Owner) -> list[list[Task]]:
        """Groups to handle now, in order; what of a group is beyond the size is given back before anybody sees it."""
        self._unsortable = {}
        with queue.conn.transaction():
            groups = [self._sorted(group) for group in self._taken(queue, owner).values()]
            if self.size >= 0:
                beyond = [task for group in groups for task in group[self.size :]]
                queue.release_tasks(owner, beyond)
                groups = [group[: self.size] for group in groups]
        return groups

    def _sorted(self, group: list[Task]) -> list[Task]:
        """A group in the order of the sorter. First come the tasks that it cannot place: each fails by itself."""
        keys: dict[Task, Any] = {}
        for task in group:
            try:
                keys[task] = self._sorter(readable(task))
            except Exception as error:  # noqa: BLE001 -- a sorter is the user's: its error is this task's failure
                self._unsortable[task] = error
        try:
            ordered = sorted(keys, key=keys.__getitem__)
        except Exception as error:  # noqa: BLE001 -- keys that do not compare: no task of the group has a place
            self._unsortable |= dict.fromkeys(keys, error)
            return group
        return [task for task in group if task not in keys] + ordered

    def _taken(self, queue: TaskQueue, owner: Owner) -> dict[str, list[Task]]:
        return queue.poll_batch(self.topic, owner, self._groups) if self.size else {}

    def _handle(self, queue: TaskQueue, owner: Owner, group: list[Task], tally: GroupedRun) -> None:
        """Handles a group in order; what is not to be handled now is given back."""
        for nth, task in enumerate(group):
            if self._periodic.is_stopping:
                self._leave(queue, owner, group[nth:], tally)
                return
            if self._succeeds(queue, owner, task):
                tally.succeeded += 1
                continue
            tally.failed += 1
            if self.mode is GroupMode.FAIL_FIRST:
                self._leave(queue, owner, group[nth + 1 :], tally)
                return

    def _leave(self, queue: TaskQueue, owner: Owner, rest: list[Task], tally: GroupedRun) -> None:
        """Gives the rest of a group back for the next time."""
        queue.release_tasks(owner, rest)
        tally.left += len(rest)

    def _succeeds(self, queue: TaskQueue, owner: Owner, task: Task) -> bool:
        """Handles one task in a transaction with its end; an error undoes it, and is noted in another."""
        begun = time.monotonic()
        try:
            return self._decided(queue, owner, task)
        finally:
            self._seconds.append(time.monotonic() - begun)

    def _decided(self, queue: TaskQueue, owner: Owner, task: Task) -> bool:
        """Commits what the handler decided, or what its error decides; True if that counts as a success."""
        try:
            if self._takes_queue:
                decision = self._until_committed(lambda: self._handled_within(queue, owner, task))
            else:
                decision = self._called(task)
                self._until_committed(lambda: queue.complete(owner, {task: decision}))
        except (_HandlerFailed, psycopg.IntegrityError) as failed:  # the second of a deferred constraint, at the commit
            if queue.conn.closed:
                self._note_cut_off(task, failed.__cause__)
                raise
            error = failed.__cause__ or failed
            ruled = self._ruled(error)
            succeeded = ruled.result is Result.SUCCESS
            level = logging.DEBUG if succeeded else logging.WARNING
            log.log(level, "topic %s, sequence %s: %s", task.topic, task.sequence, type(error).__name__)
            self._until_committed(lambda: queue.complete(owner, {task: ruled}))
            return succeeded
        return decision.result is not Result.FAILURE

    def _note_cut_off(self, task: Task, error: BaseException | None) -> None:
        """Notes that a handler's statement or transaction took longer than it may, which ended the connection."""
        if error is not None and is_session_timeout(error):
            self._cut_offs[task] = (self._cut_offs.get(task, (0, error))[0] + 1, error)

    def _handled_within(self, queue: TaskQueue, owner: Owner, task: Task) -> Decision:
        """Handles a task in the transaction that completes it."""
        with queue.conn.transaction():
            with self._session.for_handler_statements():
                decision = self._called(task, queue)
            queue.complete(owner, {task: decision})
        return decision

    def _called(self, task: Task, *given: TaskQueue) -> Decision:
        """What the handler decides; _HandlerFailed tells its errors from those of the queue.

        A task whose handler was cut off several times in a row is not handled again.
        """
        count, reason = self._cut_offs.get(task, (0, None))
        if count >= _CUT_OFFS:
            del self._cut_offs[task]
            raise _HandlerFailed from reason
        try:
            self._need_place(task)
            outcome = result_of(self._handler(task, *given), Batch([task]), name_of(self._handler))
            decision = decision_of(outcome)
        except Exception as error:
            raise _HandlerFailed from error
        self._cut_offs.pop(task, None)
        return decision

    def _need_place(self, task: Task) -> None:
        """Raises what the sorter raised for a task."""
        if (error := self._unsortable.get(task)) is not None:
            raise error

    def _until_committed(self, commit: Callable[[], T]) -> T:
        """Commits, again and again while that fails for a reason that may pass; LeaseLost ends it.

        A handler that takes the queue is called again, as what it wrote was undone.
        """
        back_off = BackOff()
        while True:
            try:
                return commit()
            except psycopg.Error as error:
                if not is_transient(error) or self._periodic.sleep(back_off.next()):
                    raise
                log.warning(
                    "not committed: topic=%s error=%s; tried again: %s", self.topic, type(error).__name__, error
                )

    def _ruled(self, error: BaseException) -> Decision:
        """What an error decides: by the first rule of its kind, else by `success_on`, as a worker has it."""
        for kind, decided in self._rules.items():
            if isinstance(error, kind):
                made = decision_of(decided)
                keeps_error = made.error is None and made.result is not Result.SUCCESS
                return replace(made, error=error) if keeps_error else made
        return decision_on(error, self._success_on)

    def _note(self, queue: TaskQueue) -> None:
        """Notes how long tasks took, for statistics."""
        seconds, self._seconds = self._seconds, []
        if seconds:
            queue.record_handling_times(self.topic, seconds)

    def _poll(self) -> float:
        """The clean-up and the run that are due, and the seconds until the next of both."""
        if self._cleanup is not None and self._cleanup_due <= time.monotonic():
            self._cleanup_due = time.monotonic() + self._cleanup.total_seconds()
            with self._session.queue() as queue:
                queue.purge_past_ttl(self.topic)
        if self._run_due <= time.monotonic():
            tally = self.run_once()
            has_more = self.size < 0 and tally.groups == self._groups and tally.succeeded
            self._run_due = time.monotonic() + (0.0 if has_more else self._pause)
        due = self._run_due if self._cleanup is None else min(self._run_due, self._cleanup_due)
        return max(0.0, due - time.monotonic())


def readable(task: Task) -> Task:
    """The task; InvalidTask if its payload cannot be decoded."""
    if isinstance(task.payload, UnreadablePayload):
        raise InvalidTask(task.payload.reason)
    return task


class Keeper(Routine):
    """Extends a lease every third of its length while a run takes; the first time after a while, as it is fresh."""

    def __init__(self, connect: Connect, owner: Owner) -> None:
        self._owner = owner
        self._third = owner.lease.total_seconds() / 3
        self._first = True
        limit = heartbeat_limit(owner.lease.total_seconds())
        super().__init__(f"lease of {owner.name}", connect, self._keep, min(self._third, _AGAIN), limit)

    def _keep(self) -> float:
        if not self._first:
            with self._session.queue() as queue:
                queue.heartbeat(self._owner)
        self._first = False
        return self._third
