"""The polls of one thread, as an owner of its own."""

import time
from collections.abc import Mapping
from typing import cast

from airflow_provider_taskq.queue import Condition, Decision, LeaseLost, Polled, Result, Task
from airflow_provider_taskq.worker.connection import DatabaseSession
from airflow_provider_taskq.worker.lease import InFlightBatch, Lease
from airflow_provider_taskq.worker.runtime import WorkerRuntime
from airflow_provider_taskq.worker.unanswered import UnansweredClaims


class TaskPoller:
    """Polls for one thread, as an owner of its own."""

    def __init__(self, runtime: WorkerRuntime, session: DatabaseSession, owner: str) -> None:
        self._runtime = runtime
        self._session = session
        self._owner = owner
        self._lease: Lease | None = None
        self.claims = UnansweredClaims(runtime.config.lease.total_seconds())

    @property
    def is_lost(self) -> bool:
        """Whether the lease is lost."""
        return self._lease is not None and self._lease.lost is not None

    def lease(self) -> Lease:
        """Return the lease to poll under. Register the owner if it has none, or has lost it."""
        if self._lease is None or self.is_lost:
            with self._session.queue() as queue:
                since = time.monotonic()
                owner = queue.register(self._owner, self._runtime.config.lease)
            self._lease = Lease(owner, since, on_abandon=self._runtime.on_abandoned)
            if owner.resumed:
                self.claims.expect()
            self._runtime.keeper.add(self._lease)
        return self._lease

    def poll(self, size: int) -> Polled:
        """Poll up to `size` tasks, or return tasks that the owner holds and this process does not know yet."""
        lease, config = self.lease(), self._runtime.config
        if self.claims.is_due():
            with self._session.queue() as queue:
                if found := self.claims.find(queue, lease, config.topic):
                    return found
        with self.claims.watched(), self._session.queue() as queue:
            if config.groups is not None:
                locked = config.groups.lock(queue, config.topic, self._runtime.owner_prefix)
                return config.groups.claim(queue, config.topic, lease.owner) if locked else Polled()
            return queue.poll(config.topic, lease.owner, size, config.order, config.condition)

    def exchange(self, batch: InFlightBatch, decisions: Mapping[Task, Decision]) -> Polled:
        """Complete a batch and poll, in one call."""
        config = self._runtime.config
        completed = cast("Mapping[Task | int, Decision | Result]", decisions)
        with self.claims.watched(), self._session.queue() as queue:
            return queue.exchange(
                batch.lease.owner, completed, config.topic, config.size, config.order, config.condition
            )

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
        lease = self._lease
        if lease is None or self.is_lost:
            return
        try:
            with self._session.queue() as queue:
                queue.heartbeat(lease.owner)
        except LeaseLost:
            self._runtime.keeper.lose(lease, error)
