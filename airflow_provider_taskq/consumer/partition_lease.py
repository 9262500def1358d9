"""Leases of partitions: in the database, or for progress in a tracker as locks, or none."""

from collections.abc import Collection
from itertools import count

from airflow_provider_taskq.consumer.config import ConsumerConfig
from airflow_provider_taskq.queue import PartitionLease, TaskQueue
from airflow_provider_taskq.worker.connection import Connect, connect_limited, heartbeat_limit


class PartitionLeases:
    """Partitions that one consumer holds by leases in the database. The fence of a lease guards its progress."""

    def __init__(self, connect: Connect, group: str, topic: str, member_id: str, config: ConsumerConfig) -> None:
        self.group, self.topic, self.member_id = group, topic, member_id
        self.config = config
        self._connect = connect
        self.reconnect()

    def reconnect(self) -> None:
        """Open a connection. Its calls have the time limit of heartbeats."""
        limit = heartbeat_limit(self.config.stored_lease.total_seconds())
        self.queue = TaskQueue(connect_limited(self._connect, limit))

    def acquire(self, except_: Collection[int]) -> PartitionLease | None:
        """Acquire a partition that is free, or whose lease has lapsed. Return None if there is no such partition.

        :raises InvalidState: if programs with another division use the group.
        """
        partitions, level, resolver = self.config.division
        return self.queue.acquire_partition(
            *(self.group, self.topic, self.member_id, self.config.stored_lease, partitions, level),
            resolver=resolver,
            except_=list(except_),
        )

    def renew(self) -> set[int]:
        """Extend all leases. Return the fences of the leases that still exist."""
        return self.queue.renew_partitions(self.group, self.topic, self.member_id)

    def release(self, lease: PartitionLease, error: BaseException | None) -> None:
        """Release a partition for other consumers, and store the error that ended it."""
        self.queue.release_partition(lease, error)


class TrackedPartitionLeases(PartitionLeases):
    """Partitions whose progress is in a tracker, which no fence can guard. Locks keep others out, if `exclusive`."""

    def __init__(self, connect: Connect, group: str, topic: str, member_id: str, config: ConsumerConfig) -> None:
        super().__init__(connect, group, topic, member_id, config)
        self._held: dict[int, PartitionLease] = {}
        self._fences = count(1)  # of this process only

    def acquire(self, except_: Collection[int]) -> PartitionLease | None:
        """Acquire a partition whose lock is free. Return None if there is no such partition."""
        held = {lease.partition for lease in self._held.values()}
        for partition in range(self.config.partitions):
            if partition not in held and partition not in except_ and self._lock(partition):
                fence = next(self._fences)
                self._held[fence] = PartitionLease(self.group, self.topic, partition, fence)
                return self._held[fence]
        return None

    def renew(self) -> set[int]:
        """Extend all locks. Return the fences of the partitions whose lock no other consumer has taken."""
        self._held = {fence: lease for fence, lease in self._held.items() if self._lock(lease.partition)}
        return set(self._held)

    def release(self, lease: PartitionLease, error: BaseException | None) -> None:  # noqa: ARG002 -- locks store none
        """Unlock a partition for other consumers."""
        if self._held.pop(lease.fence, None) is not None and self.config.exclusive:
            self.queue.unlock(self._lock_name(lease.partition), self.member_id)

    def _lock(self, partition: int) -> bool:
        name, length = self._lock_name(partition), self.config.stored_lease
        return not self.config.exclusive or self.queue.lock(name, self.member_id, length)

    def _lock_name(self, partition: int) -> str:
        return f"consumer {self.group} of {self.topic}, partition {partition} of {self.config.division}"
