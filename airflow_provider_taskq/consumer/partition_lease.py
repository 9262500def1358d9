"""Partitions that a consumer holds: under its lease as an owner, or for progress in a tracker by locks, or freely."""

from collections.abc import Collection
from contextlib import suppress

from airflow_provider_taskq.consumer.config import ConsumerConfig
from airflow_provider_taskq.queue import LeaseLost, Owner, PartitionLease
from airflow_provider_taskq.queue.session import Connect, DatabaseSession, heartbeat_limit


class PartitionLeases:
    """Partitions that one consumer holds as an owner with a lease. The fence of each one guards its progress."""

    def __init__(self, connect: Connect, group: str, topic: str, member_id: str, config: ConsumerConfig) -> None:
        self.group, self.topic, self.member_id = group, topic, member_id
        self.config = config
        self.session = DatabaseSession(connect, heartbeat_limit(config.stored_lease.total_seconds()))
        self._owner: Owner | None = None

    def renew(self) -> bool:
        """Extend the lease. Return False if it had lapsed or ended: others may have acquired the partitions."""
        with self.session.queue() as queue:
            before = self._owner
            if before is not None:
                with suppress(LeaseLost):
                    self._owner = queue.heartbeat(before)
                    # The clock of this machine may have stood still, with the machine.
                    return self._owner.lease_until - before.lease <= before.lease_until
            self._owner = queue.register(self.member_id, self.config.stored_lease)
            return before is None

    def acquire(self, except_: Collection[int]) -> PartitionLease | None:
        """Acquire a partition that is free, or whose lease has lapsed. Return None if there is no such partition.

        :raises InvalidState: if programs with another division use the group.
        """
        if self._owner is None:
            return None
        partitions, level, resolver = self.config.division
        with suppress(LeaseLost), self.session.queue() as queue:  # the next renewal registers again
            return queue.acquire_partition(
                self.group, self.topic, self._owner, partitions, level, resolver=resolver, except_=list(except_)
            )
        return None

    def release(self, lease: PartitionLease, error: BaseException | None) -> None:
        """Release a partition for other consumers, and store the error that ended it."""
        with self.session.queue() as queue:
            queue.release_partition(lease, error)

    def end(self) -> None:
        """End the lease."""
        if self._owner is not None:
            with self.session.queue() as queue:
                queue.release(self._owner)


class TrackedPartitionLeases(PartitionLeases):
    """Partitions whose progress is in a tracker, which no fence can guard. Locks keep others out, if `exclusive`."""

    def __init__(self, connect: Connect, group: str, topic: str, member_id: str, config: ConsumerConfig) -> None:
        super().__init__(connect, group, topic, member_id, config)
        self._held: set[int] = set()

    def renew(self) -> bool:
        """Extend all locks. Return False if another consumer has taken one of them."""
        kept = [self._lock(partition) for partition in self._held]
        return all(kept)

    def acquire(self, except_: Collection[int]) -> PartitionLease | None:
        """Acquire a partition whose lock is free. Return None if there is no such partition."""
        for partition in range(self.config.partitions):
            if partition not in except_ and self._lock(partition):
                self._held.add(partition)
                return PartitionLease(self.group, self.topic, partition, 0)
        return None

    def release(self, lease: PartitionLease, error: BaseException | None) -> None:  # noqa: ARG002 -- locks store none
        """Unlock a partition for other consumers."""
        self._held.discard(lease.partition)
        if self.config.exclusive:
            with self.session.queue() as queue:
                queue.unlock(self._lock_name(lease.partition), self.member_id)

    def _lock(self, partition: int) -> bool:
        if not self.config.exclusive:
            return True
        with self.session.queue() as queue:
            return queue.lock(self._lock_name(partition), self.member_id, self.config.stored_lease)

    def _lock_name(self, partition: int) -> str:
        return f"consumer {self.group} of {self.topic}, partition {partition} of {self.config.division}"
