"""What a worker is told about how to work."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from airflow_provider_taskq.queue import Condition, Order
from airflow_provider_taskq.queue.connection import CallLimit
from airflow_provider_taskq.queue.encoding import MAX_STORED_DURATION
from airflow_provider_taskq.worker.batches import Rewrite
from airflow_provider_taskq.worker.connection import call_limit


class Pending(StrEnum):
    """What becomes of tasks that are ready but not begun when their worker stops."""

    FINISH = "FINISH"  # they are handled first
    FAIL = "FAIL"  # they are FAILED, or retried by the policy of their topic
    RELEASE = "RELEASE"  # they are given back, in their old place


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a worker works; see `Worker`."""

    topic: str
    name: str
    size: int
    order: Order
    condition: Condition
    workers: int
    prefetch: int
    pending: Pending
    pause: timedelta
    lease: timedelta
    slow_after: timedelta
    report_every: timedelta
    limit: timedelta | None
    rewrite: Rewrite | None
    listen: bool
    call_timeout: timedelta | None
    handler_statement_timeout: timedelta

    def call_limit(self) -> CallLimit:
        """A limit for the calls of one session."""
        return call_limit(self.lease, self.call_timeout, self.handler_statement_timeout)

    def __post_init__(self) -> None:
        least = {"size": 1, "workers": 1, "prefetch": 0}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise ValueError(f"{name} is {value} at least, not {getattr(self, name)}")
        for name in (
            "pause",
            "lease",
            "slow_after",
            "report_every",
            "limit",
            "call_timeout",
            "handler_statement_timeout",
        ):
            duration = getattr(self, name)
            if duration is not None and duration <= timedelta(0):
                raise ValueError(f"{name} is a time greater than 0, not {duration}")
        if self.lease > MAX_STORED_DURATION:
            raise ValueError(f"lease is at most {MAX_STORED_DURATION.days} days, not {self.lease}")
