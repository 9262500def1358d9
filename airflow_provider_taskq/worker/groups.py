"""Groups: a worker handles the due tasks of one identifier one after another, each in a batch of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from itertools import pairwise

from airflow_provider_taskq.queue import (
    Decision,
    Owner,
    Polled,
    Result,
    TaskQueue,
)
from airflow_provider_taskq.queue.arguments import DurationLike, to_integer, to_timedelta
from airflow_provider_taskq.worker.batches import Batch
from airflow_provider_taskq.worker.lease import InFlightBatch


class GroupMode(StrEnum):
    """What a worker does with the later tasks of a group after a FAILURE."""

    ALL = "all"  # handles them
    FAIL_FIRST = "fail_first"  # releases them; a later poll hands them out when the failed task has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """How a worker handles groups: `Worker(..., groups=Groups())`.

    Each poll claims one group, the due tasks of one identifier. The worker handles its tasks one after another, and
    commits each of them before the next one starts. A group is left out while one of its tasks is held, waits for a
    retry, or is FAILED.

    :param mode: what the worker does with the later tasks of a group after a FAILURE.
    :param size: tasks of a group that a poll claims, the first ones in polled order; None for all.
    :param cluster_lock: lets one program at a time poll the topic, while the others wait. The program keeps the lock
        until it stops. After a crash the lock lapses when this time is over, so it must be longer than the work on any
        group. With None, several programs handle different groups at once.
    """

    mode: GroupMode | str = GroupMode.ALL
    size: int | None = None
    cluster_lock: DurationLike | None = None

    def __post_init__(self) -> None:
        GroupMode(self.mode)
        to_timedelta(self.cluster_lock, "cluster_lock", timedelta.resolution)
        if self.size is not None:
            to_integer(self.size, "size", 1)

    def claim(self, queue: TaskQueue, topic: str, owner: Owner) -> Polled:
        """Claim a group, in polled order."""
        with queue.conn.transaction():
            groups = queue.poll_batch(topic, owner, 1, self.size or -1)
            claimed = Polled(task for tasks in groups.values() for task in tasks)
            if claimed:
                claimed.fence = queue.draw_fence(owner)
        return claimed

    def lock(self, queue: TaskQueue, topic: str, holder: str) -> bool:
        """Take or extend the cluster lock. Return False if another program holds it."""
        return self.cluster_lock is None or queue.lock(f"groups {topic}", holder, self.cluster_lock)

    def unlock(self, queue: TaskQueue, topic: str, holder: str) -> None:
        """Give the cluster lock back."""
        if self.cluster_lock is not None:
            queue.unlock(f"groups {topic}", holder)

    def stops_after(self, decision: Decision | None) -> bool:
        """Return whether the worker releases the tasks of a group after a task with this decision."""
        return self.mode == GroupMode.FAIL_FIRST and decision is not None and decision.result is Result.FAILURE


def chain_batches(batches: Sequence[InFlightBatch]) -> InFlightBatch:
    """Let each batch but the first follow the one before it. Return the first."""
    for earlier, later in pairwise(batches):
        earlier.next = later
    return batches[0]


def join_batches(first: InFlightBatch) -> InFlightBatch | None:
    """Take a batch and those that follow it away from their group, as one. Return None if its lease is lost."""
    batches: list[InFlightBatch] = []
    following: InFlightBatch | None = first
    while following is not None:
        batches.append(following)
        following = following.next
    lease = first.lease
    joined = InFlightBatch(
        Batch(task for each in batches for task in each.batch.tasks), lease, batches[-1].token, first.trace
    )
    if lease.replace(batches, joined):
        joined.claim()
        return joined
    return None
