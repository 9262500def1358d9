"""The settings of a worker."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from airflow_provider_taskq.queue import Condition, Order
from airflow_provider_taskq.queue.connection import CallLimit
from airflow_provider_taskq.queue.encoding import MAX_STORED_DURATION
from airflow_provider_taskq.worker.batches import Rewrite
from airflow_provider_taskq.worker.connection import lease_call_limit


class Pending(StrEnum):
    """What a worker does at its stop with prefetched tasks."""

    FINISH = "FINISH"  # handles them first
    FAIL = "FAIL"  # fails them; the policy of their topic may retry them
    RELEASE = "RELEASE"  # releases them: they are ready again, in their old place


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """The settings of a worker, as `Worker` documents them."""

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
        """A new limit for the calls of one session."""
        return lease_call_limit(self.lease, self.call_timeout, self.handler_statement_timeout)

    def __post_init__(self) -> None:
        least = {"size": 1, "workers": 1, "prefetch": 0}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise ValueError(f"{name} must be at least {value}, not {getattr(self, name)}")
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
                raise ValueError(f"{name} must be longer than 0, not {duration}")
        if self.lease > MAX_STORED_DURATION:
            raise ValueError(f"lease must be at most {MAX_STORED_DURATION.days} days, not {self.lease}")
