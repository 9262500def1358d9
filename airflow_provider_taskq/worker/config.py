"""The options of a worker."""

from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from enum import StrEnum

from airflow_provider_taskq.queue import Condition, Decision, Order, Owner, Polled, Result, TaskQueue
from airflow_provider_taskq.queue.arguments import Duration, DurationLike, to_integer, to_timedelta
from airflow_provider_taskq.queue.connection import CallLimit
from airflow_provider_taskq.queue.encoding import MAX_STORED_DURATION
from airflow_provider_taskq.queue.session import DEFAULT_TIMEOUTS, Connect, Timeouts, connection_factory
from airflow_provider_taskq.worker.functions import handler_of
from airflow_provider_taskq.worker.handlers import TaskFunction, WorkHandler
from airflow_provider_taskq.worker.limiter import Limiter
from airflow_provider_taskq.worker.listener import WorkerListener

MAX_NAME_LENGTH = 900  # the name of an owner may have 1000: the host, the process and a number follow


@dataclass(frozen=True, kw_only=True)
class SlowReports:
    """When a worker reports a slow handler, with its stack: `after` this time, and then once `every` interval."""

    after: Duration[timedelta] = Duration("5m")
    every: Duration[timedelta] = Duration("1m")


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


@dataclass(eq=False, repr=False)
class WorkerConfig:
    """The options of a worker, which `Worker` documents. Raises ValueError if they make no sense."""

    dsn: str | Connect | None
    topic: str
    handler: WorkHandler | TaskFunction
    _: KW_ONLY
    # What to poll:
    order: Order = Order.FIRST_IN_FIRST_OUT
    condition: Condition = Condition.NONE
    groups: Groups | None = None
    # How much at once:
    size: int = 1
    workers: int = 1
    prefetch: int = 0
    limiter: Limiter | None = None
    # When:
    lease: Duration[timedelta] = Duration("1m")
    pause: Duration[timedelta] = Duration("1s")
    limit: Duration[timedelta | None] = Duration(None)
    timeouts: Timeouts = DEFAULT_TIMEOUTS
    listen: bool = True
    # What others see:
    name: str = ""
    listener: WorkerListener | None = None
    slow_reports: SlowReports = SlowReports()

    def call_limit(self) -> CallLimit:
        """Return the time limit for the calls of a new session."""
        return self.timeouts.call_limit(self.lease)

    def __post_init__(self) -> None:
        self.name = self.name or self.topic
        self.order, self.condition = Order(self.order), Condition(self.condition)
        if len(self.name) > MAX_NAME_LENGTH or "\x00" in self.name:  # else each registration would fail
            raise ValueError(f"name must have at most {MAX_NAME_LENGTH} characters, and no NUL")
        for name, least in (("size", 1), ("workers", 1), ("prefetch", 0)):
            setattr(self, name, to_integer(getattr(self, name), name, least))
        if self.lease > MAX_STORED_DURATION:
            raise ValueError(f"lease must be at most {MAX_STORED_DURATION.days} days, not {self.lease}")
        if self.timeouts.call is not None and self.timeouts.call >= self.lease:
            raise ValueError(f"timeouts.call must be shorter than the lease, not {self.timeouts.call}")
        polled = (self.size, self.prefetch, self.order, self.condition)
        if self.groups is not None and polled != (1, 0, Order.FIRST_IN_FIRST_OUT, Condition.NONE):
            raise ValueError("groups have an order and sizes of their own: no size, prefetch, order or condition")
        self.connect: Connect = connection_factory(self.dsn, self.lease)
        self.work_handler: WorkHandler = handler_of(self.handler)
