"""The calls of a worker that change tasks, and what follows if a call gets no answer.

Then the server carried the call out, or not, or will do so after a while. Claims and commits have these states:

               refused by the server: it changed nothing
               +--------+
               v        |
    call -> ANSWERED ---+
               |  ^
    no answer  |  | claim: three lengths of the lease are over
               |  | commit: the batch is committed, or its lease is lost
               v  |
            UNANSWERED --+
                ^        | look at what the owner holds: at once, then every third of the lease
                +--------+

A look after a claim finds tasks that this process does not know: they are handled like polled ones. A look after a
commit finds the tasks of the batch: held ones are committed again, and if none is held, the batch is committed.
"""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import cast

from airflow_provider_taskq.queue import Condition, Decision, LeaseLost, Polled, Result, Task, TaskQueue
from airflow_provider_taskq.queue.faults import classify
from airflow_provider_taskq.queue.session import DatabaseSession
from airflow_provider_taskq.worker.lease import InFlightBatch, Lease
from airflow_provider_taskq.worker.runtime import WorkerRuntime

_LEASES = 3  # lengths of the lease after which the server does not carry a claim out any more
_LONGEST_INTERVAL = 10.0  # seconds between two looks


class TaskPoller:
    """Polls for one thread, as an owner of its own."""

    def __init__(self, runtime: WorkerRuntime, session: DatabaseSession) -> None:
        self._runtime = runtime
        self._session = session
        self._owner = runtime.next_owner_name()
        self._lease: Lease | None = None
        self._look_at = math.inf  # by time.monotonic()
        self._look_until = 0.0

    def lease(self) -> Lease:
        """Return the lease to poll under. Register the owner if it has none, or has lost it."""
        if self._lease is None or self._lease.lost is not None:
            with self._session.queue() as queue:
                since = time.monotonic()
                owner = queue.register(self._owner, self._runtime.config.lease)
            self._lease = Lease(owner, since, on_abandon=self._runtime.on_abandoned)
            if owner.resumed:
                self._look_at = time.monotonic()
            self._runtime.keeper.add(self._lease)
        return self._lease

    @property
    def must_look(self) -> bool:
        """Whether `poll` looks for the tasks of an earlier claim, or registration, before it claims others."""
        return time.monotonic() >= self._look_at

    def poll(self, size: int) -> Polled:
        """Poll up to `size` tasks, or return tasks that the owner holds and this process does not know yet."""
        lease, config = self.lease(), self._runtime.config
        with self._claim() as queue:
            if self.must_look and (found := self._unknown(queue, lease)):
                return found
            if config.groups is not None:
                locked = config.groups.lock(queue, config.topic, self._runtime.owner_prefix)
                return config.groups.claim(queue, config.topic, lease.owner) if locked else Polled()
            return queue.poll(config.topic, lease.owner, size, config.order, config.condition)

    def exchange(self, batch: InFlightBatch, decisions: Mapping[Task, Decision]) -> Polled:
        """Complete a batch and poll, in one call."""
        config = self._runtime.config
        completed = cast("Mapping[Task | int, Decision | Result]", decisions)
        with self._claim() as queue:
            return queue.exchange(
                batch.lease.owner, completed, config.topic, config.size, config.order, config.condition
            )

    @contextmanager
    def _claim(self) -> Iterator[TaskQueue]:
        """Yield the queue for a claim. If it gets no answer, the first look is due at once."""
        try:
            with self._session.queue() as queue:
                yield queue
        except Exception as error:
            if not classify(error).is_answer:
                self._look_at = time.monotonic()
                self._look_until = self._look_at + _LEASES * self._runtime.config.lease.total_seconds()
            raise

    def _unknown(self, queue: TaskQueue, lease: Lease) -> Polled:
        """Return the tasks that the owner holds and this process does not know. If it fails, the look stays due."""
        # Known before the call: meanwhile other threads may end batches of this lease, but they add none.
        known = {task for batch in lease.batches for task in batch.tasks}
        found = Polled(task for task in queue.held(lease.owner, self._runtime.config.topic) if task not in known)
        if found:
            found.fence = queue.draw_fence(lease.owner)
        following = time.monotonic() + min(_LONGEST_INTERVAL, self._runtime.config.lease.total_seconds() / 3)
        self._look_at = following if following < self._look_until else math.inf
        return found

    def has_missed(self) -> bool:
        """Return whether another poll may find tasks after an empty one.

        Under a condition, a poll skips the identifiers that a concurrent poll examines. The concurrent poll may not
        claim them either, if it started before the last task of the identifier was completed.
        """
        config = self._runtime.config
        if config.condition is Condition.NONE:
            return False
        with self._session.queue() as queue:
            return queue.has_unclaimed(config.topic, config.condition)

    def release(self) -> None:
        """Release the lease and its tasks."""
        if self._lease is not None:
            self._runtime.keeper.release(self._session, self._lease)

    def recover(self, error: LeaseLost) -> None:
        """Extend the lease after a LeaseLost. If the lease is gone, abandon its batches."""
        if self._lease is None or self._lease.lost is not None:
            return
        try:
            with self._session.queue() as queue:
                queue.heartbeat(self._lease.owner)
        except LeaseLost:
            self._runtime.keeper.lose(self._lease, error)


class UnansweredCommit:
    """The commit of one batch: whether an earlier call may have committed the batch."""

    def __init__(self) -> None:
        self._is_sent = self._is_unanswered = False

    def failed(self, error: BaseException) -> None:
        """Note a failed call."""
        self._is_sent = True
        self._is_unanswered |= not classify(error).is_answer

    def left(
        self, queue: TaskQueue, in_flight: InFlightBatch, decisions: Mapping[Task, Decision]
    ) -> Mapping[Task, Decision] | None:
        """Return the decisions that are left to commit, or None if an earlier call has committed the batch.

        Leaves out tasks that were purged or dropped meanwhile. Raises LeaseLost if the lease is gone.
        """
        if not self._is_sent:
            return decisions
        owner = in_flight.lease.owner
        queue.heartbeat(owner)
        # The call without an answer may have made a task ready, and a later poll may have claimed it again.
        others = {task for other in in_flight.lease.batches if other is not in_flight for task in other.tasks}
        held = {task: task.attempt for task in queue.held(owner) if task not in others}
        left = {task: decision for task, decision in decisions.items() if held.get(task) == task.attempt}
        return None if self._is_unanswered and not left else left
