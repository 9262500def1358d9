"""Who leads: partitions taken, kept and given back, by leases in the database or by nobody's leave."""

from collections.abc import Collection
from datetime import timedelta
from itertools import count
from typing import Protocol

import psycopg

from airflow_provider_taskq.consumer.config import ConsumerConfig
from airflow_provider_taskq.queue import PartitionLease, TaskQueue


class PartitionLeases(Protocol):
    """How one program gets partitions of a topic to lead, through `queue`."""

    queue: TaskQueue
    topic: str

    def join(self) -> None:
        """Says how the topic is to be shared out."""

    def lead(self, except_: Collection[int]) -> PartitionLease | None:
        """One more partition, if there is one to lead."""

    def keep(self) -> set[int]:
        """The fences of the partitions that we still lead, for another lease."""

    def give_back(self, led: PartitionLease, error: BaseException | None) -> None:
        """Leads that partition no more."""


class FencedPartitionLeases(PartitionLeases):
    """By a lease with a fence for each partition, which progress in the database is stored under."""

    def __init__(self, conn: psycopg.Connection, group: str, topic: str, leader: str, settings: ConsumerConfig) -> None:
        self.queue = TaskQueue(conn)
        self.group, self.topic, self.leader = group, topic, leader
        self.settings = settings

    def join(self) -> None:
        """Asks for as many partitions as the settings say."""
        self.queue.join_group(self.group, self.topic, self.settings.partitions, self.settings.shared_level)

    def lead(self, except_: Collection[int]) -> PartitionLease | None:
        """A partition that nobody leads, or whose leader gave no sign of life."""
        return self.queue.acquire_partition(
            self.group, self.topic, self.leader, stored(self.settings.lease), list(except_)
        )

    def keep(self) -> set[int]:
        """Extends the leases of all that we lead."""
        return self.queue.renew_partitions(self.group, self.topic, self.leader)

    def give_back(self, led: PartitionLease, error: BaseException | None) -> None:
        """Lets a spare take it at once."""
        self.queue.release_partition(led, error)


class LockedPartitionLeases(PartitionLeases):
    """By a lock with a name for each partition, for progress in memory: there is nothing that a fence could guard."""

    def __init__(self, conn: psycopg.Connection, group: str, topic: str, leader: str, settings: ConsumerConfig) -> None:
        self.queue = TaskQueue(conn)
        self.group, self.topic, self.leader = group, topic, leader
        self.settings = settings
        self.led: dict[int, PartitionLease] = {}
        self._numbers = count(1)

    def join(self) -> None:
        """Each way of sharing out has locks of its own: there is nothing to agree on."""

    def lead(self, except_: Collection[int]) -> PartitionLease | None:
        """A partition whose lock we get."""
        for partition in range(self.settings.partitions):
            mine = any(led.partition == partition for led in self.led.values())
            if not mine and partition not in except_ and self._lock(partition):
                number = next(self._numbers)
                shared = (self.settings.partitions, self.settings.shared_level, partition)
                self.led[number] = PartitionLease(self.group, self.topic, 1, *shared, number, taken_over=False)
                return self.led[number]
        return None

    def keep(self) -> set[int]:
        """Extends the locks of all that we lead; what somebody else got meanwhile we lead no more."""
        for number, led in list(self.led.items()):
            if not self._lock(led.partition):
                del self.led[number]
        return set(self.led)

    def give_back(self, led: PartitionLease, error: BaseException | None) -> None:  # noqa: ARG002 - there is no place for it
        """Unlocks it."""
        if self.led.pop(led.fence, None) is not None:
            self.queue.unlock(self._name(led.partition), self.leader)

    def _lock(self, partition: int) -> bool:
        return self.queue.lock(self._name(partition), self.leader, stored(self.settings.lease))

    def _name(self, partition: int) -> str:
        shared = f"{partition} of {self.settings.partitions} by {self.settings.shared_level}"
        return f"reader {self.group} of {self.topic}, partition {shared}"


class SharedPartitions(LockedPartitionLeases):
    """Everybody leads everything: for progress in memory that each program needs for itself."""

    def _lock(self, partition: int) -> bool:  # noqa: ARG002
        return True

    def give_back(self, led: PartitionLease, error: BaseException | None) -> None:  # noqa: ARG002
        """Nobody is told."""
        self.led.pop(led.fence, None)


def stored(lease: timedelta) -> timedelta:
    """The lease in the database: four fifths, as spares look every tenth, so that one takes over within the whole."""
    return lease * 0.8


def interval(lease: timedelta) -> float:
    """How often leases are kept and looked for, in seconds."""
    return min(lease.total_seconds() / 10, 1.0)
