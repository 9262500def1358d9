"""The options of a worker."""

from dataclasses import KW_ONLY, dataclass
from datetime import timedelta

from airflow_provider_taskq.queue import Condition, Order
from airflow_provider_taskq.queue.arguments import Duration, to_integer
from airflow_provider_taskq.queue.connection import CallLimit
from airflow_provider_taskq.queue.encoding import MAX_STORED_DURATION
from airflow_provider_taskq.worker.connection import DEFAULT_TIMEOUTS, Connect, Timeouts
from airflow_provider_taskq.worker.groups import Groups
from airflow_provider_taskq.worker.handlers import TaskFunction, WorkHandler
from airflow_provider_taskq.worker.limiter import Limiter
from airflow_provider_taskq.worker.listener import WorkerListener

MAX_NAME_LENGTH = 900  # the name of an owner may have 1000: the host, the process and a number follow


@dataclass(frozen=True, kw_only=True)
class SlowReports:
    """When a worker reports a slow handler, with its stack: `after` this time, and then once `every` interval."""

    after: Duration[timedelta] = Duration("5m")
    every: Duration[timedelta] = Duration("1m")


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
