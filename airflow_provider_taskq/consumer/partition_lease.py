"""Leases of partitions: in the database, as locks, or none for consumers that share all partitions."""

from collections.abc import Collection
from datetime import timedelta
from itertools import count

import psycopg

from airflow_provider_taskq.consumer.config import ConsumerConfig
from airflow_provider_taskq.queue import PartitionLease, TaskQueue
from airflow_provider_taskq.worker.connection import Connect, connect_limited, heartbeat_limit


class PartitionLeases:
    """Partitions that one consumer holds by leases in the database. The fence of a lease guards its progress."""

    def __init__(
        self, conn: psycopg.Connection, group: str, topic: str, member_id: str, config: ConsumerConfig
    ) -> None:
        self.queue = TaskQueue(conn)
        self.group, self.topic, self.member_id = group, topic, member_id
        self.config = config

    def join(self) -> None:
        """Join the group, with the number of partitions and the level that this consumer is configured for."""
        self.queue.join_group(self.group, self.topic, self.config.partitions, self.config.database_level)

    def acquire(self, except_: Collection[int]) -> PartitionLease | None:
        """Acquire a partition that is free, or whose lease has lapsed. Return None if there is no such partition."""
        length = stored_length(self.config.lease)
        return self.queue.acquire_partition(self.group, self.topic, self.member_id, length, list(except_))

    def renew(self) -> set[int]:
        """Extend all leases. Return the fences of the leases that still exist."""
        return self.queue.renew_partitions(self.group, self.topic, self.member_id)

    def release(self, lease: PartitionLease, error: BaseException | None) -> None:
        """Release a partition for other consumers, and store the error that ended it."""
        self.queue.release_partition(lease, error)


class LockedPartitionLeases(PartitionLeases):
    """Partitions that one consumer holds by locks. For progress outside the database, which no fence can guard."""

    def __init__(
        self, conn: psycopg.Connection, group: str, topic: str, member_id: str, config: ConsumerConfig
    ) -> None:
        super().__init__(conn, group, topic, member_id, config)
        self._held: dict[int, PartitionLease] = {}
        self._fences = count(1)  # of this process only

    def join(self) -> None:
        """Do nothing: consumers with another number of partitions use locks with other names."""

    def acquire(self, except_: Collection[int]) -> PartitionLease | None:
        """Acquire a partition whose lock is free. Return None if there is no such partition."""
        held = {lease.partition for lease in self._held.values()}
        for partition in range(self.config.partitions):
            if partition not in held and partition not in except_ and self._lock(partition):
                fence = next(self._fences)
                partitioning = (self.config.partitions, self.config.database_level, partition)
                lease = PartitionLease(self.group, self.topic, 1, *partitioning, fence, taken_over=False)
                self._held[fence] = lease
                return lease
        return None

    def renew(self) -> set[int]:
        """Extend all locks. Return the fences of the partitions whose lock no other consumer has taken."""
        for fence, lease in list(self._held.items()):
            if not self._lock(lease.partition):
                del self._held[fence]
        return set(self._held)

    def release(self, lease: PartitionLease, error: BaseException | None) -> None:  # noqa: ARG002 -- locks store none
        """Unlock a partition for other consumers."""
        if self._held.pop(lease.fence, None) is not None:
            self.queue.unlock(self._lock_name(lease.partition), self.member_id)

    def _lock(self, partition: int) -> bool:
        return self.queue.lock(self._lock_name(partition), self.member_id, stored_length(self.config.lease))

    def _lock_name(self, partition: int) -> str:
        partitioning = f"{partition} of {self.config.partitions} by {self.config.database_level}"
        return f"consumer {self.group} of {self.topic}, partition {partitioning}"


class SharedPartitions(LockedPartitionLeases):
    """All partitions, without locks. For consumers that each handle every event."""

    def _lock(self, partition: int) -> bool:  # noqa: ARG002
        return True

    def release(self, lease: PartitionLease, error: BaseException | None) -> None:  # noqa: ARG002
        """Remove a partition, which this consumer may acquire again."""
        self._held.pop(lease.fence, None)


def connect_for_leases(connect: Connect, config: ConsumerConfig) -> psycopg.Connection:
    """Open a connection for leases. Its calls have the time limit of heartbeats."""
    return connect_limited(connect, heartbeat_limit(stored_length(config.lease).total_seconds()))


def stored_length(lease: timedelta) -> timedelta:
    """Return the length of a lease in the database: four fifths of the configured length.

    Because other consumers try to acquire every tenth of it, one of them takes over within the configured length.
    """
    return lease * 0.8


def renewal_interval(lease: timedelta) -> float:
    """Return the seconds between two attempts to renew and acquire leases: a tenth of the lease, at most 1."""
    return min(lease.total_seconds() / 10, 1.0)
