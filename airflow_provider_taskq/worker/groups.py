"""Groups: a worker handles the due tasks of one identifier one after another, each in a batch of its own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Any

from airflow_provider_taskq.queue import (
    Decision,
    Owner,
    Polled,
    Result,
    Task,
    TaskQueue,
    UnreadablePayload,
)
from airflow_provider_taskq.queue.arguments import DurationLike, to_integer, to_timedelta
from airflow_provider_taskq.worker.batches import Batch
from airflow_provider_taskq.worker.handlers import decision_of
from airflow_provider_taskq.worker.lease import InFlightBatch

Sorter = Callable[[Task], Any]


class GroupMode(StrEnum):
    """What a worker does with the later tasks of a group after a FAILURE."""

    ALL = "all"  # handles them
    FAIL_FIRST = "fail_first"  # releases them; a later poll hands them out when the failed task has ended


def by_sequence(task: Task) -> int:
    """Return the default sort key of a group's tasks: the order in which they were pushed."""
    return task.sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """How a worker handles groups: `Worker(..., groups=Groups())`.

    Each poll claims one group, the due tasks of one identifier. The worker handles its tasks one after another, and
    commits each of them before the next one starts. A group is left out while one of its tasks is held, waits for a
    retry, or is FAILED.

    :param mode: what the worker does with the later tasks of a group after a FAILURE.
    :param size: tasks of a group that a poll claims: the first ones in polled order, or by `sorter`; None for all.
    :param sorter: a function of a task that returns its sort key within the group; by default the sequence. To sort by
        another key, a poll claims the whole group, and releases the tasks beyond `size`.
    :param rules: decisions by type of the handler's error; the first match wins. Any other error is a FAILURE.
    :param cluster_lock: lets one program at a time poll the topic, while the others wait. The program keeps the lock
        until it stops. After a crash the lock lapses when this time is over, so it must be longer than the work on any
        group. With None, several programs handle different groups at once.
    """

    mode: GroupMode | str = GroupMode.ALL
    size: int | None = None
    sorter: Sorter = by_sequence
    rules: Mapping[type[BaseException], Decision | Result | str] = field(default_factory=dict)
    cluster_lock: DurationLike | None = None

    def __post_init__(self) -> None:
        GroupMode(self.mode)
        to_timedelta(self.cluster_lock, "cluster_lock", timedelta.resolution)
        if self.size is not None:
            to_integer(self.size, "size", 1)

    def claim(self, queue: TaskQueue, topic: str, owner: Owner) -> Polled:
        """Claim a group, in order."""
        claims_whole = self.size is None or self.sorter is not by_sequence  # the sorter has to see all tasks
        with queue.conn.transaction():
            groups = queue.poll_batch(topic, owner, 1, -1 if self.size is None or claims_whole else self.size)
            group = [task for tasks in groups.values() for task in tasks]
            ordered = self.sort(group)[0]
            if rest := ordered[self.size :] if self.size is not None else []:
                queue.release_tasks(owner, rest)
            claimed = Polled(ordered[: self.size])
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

    def sort(self, tasks: list[Task]) -> tuple[list[Task], dict[Task, Exception]]:
        """Sort tasks. Tasks for which the sorter fails come first; return the errors of these, too."""
        keys: dict[Task, Any] = {}
        errors: dict[Task, Exception] = {}
        for task in tasks:
            try:
                keys[task] = self.sorter(task)
            except Exception as error:  # noqa: BLE001 -- any error of the sorter fails this task
                errors[task] = error
        try:
            return [*errors, *sorted(keys, key=keys.__getitem__)], errors
        except Exception as error:  # noqa: BLE001 -- the keys cannot be compared: all tasks fail
            return tasks, errors | dict.fromkeys(keys, error)

    def rule_of(self, error: object) -> Decision | None:
        """Return the decision of the first rule for this error, or None."""
        return next((decision_of(made) for kind, made in self.rules.items() if isinstance(error, kind)), None)

    def ruled(self, decision: Decision) -> Decision:
        """Return the decision of a rule on the error of this decision, or this decision. The error is kept."""
        made = self.rule_of(decision.error)
        if made is None:
            return decision
        keeps = made.error is None and made.result is not Result.SUCCESS
        return replace(made, error=decision.error) if keeps else made

    def stops_after(self, decision: Decision | None) -> bool:
        """Return whether the worker releases the tasks of a group after a task with this decision."""
        return self.mode == GroupMode.FAIL_FIRST and decision is not None and decision.result is Result.FAILURE


def chain_batches(batches: Sequence[InFlightBatch], errors: Mapping[Task, Exception]) -> InFlightBatch:
    """Let each batch but the first follow the one before it. Return the first.

    :param errors: by task, the errors that fail batches instead of a call of the handler.
    """
    for batch in batches:
        [task] = batch.batch.tasks
        batch.error = None if isinstance(task.payload, UnreadablePayload) else errors.get(task)
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
