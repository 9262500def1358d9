"""The settings of a worker."""

from dataclasses import dataclass, fields
from datetime import timedelta
from enum import StrEnum

from airflow_provider_taskq.queue import Condition, Order
from airflow_provider_taskq.queue.connection import CallLimit
from airflow_provider_taskq.queue.encoding import MAX_STORED_DURATION
from airflow_provider_taskq.worker.batches import Rewrite
from airflow_provider_taskq.worker.connection import lease_call_limit
from airflow_provider_taskq.worker.groups import Groups


class Pending(StrEnum):
    """What a worker does with prefetched tasks when it stops."""

    FINISH = "FINISH"  # handles and commits them
    FAIL = "FAIL"  # fails them; the policy of their topic may retry them
    RELEASE = "RELEASE"  # releases them: they become ready again, in their old place


MAX_NAME_LENGTH = 900  # the name of an owner may have 1000: the host, the process and a number follow


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """The settings of a worker, which `Worker` documents.

    Raises ValueError if a setting is out of range.
    """

    topic: str
    name: str
    size: int
    order: Order
    condition: Condition
    groups: Groups | None
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
        """Return the time limit for the calls of a new session."""
        return lease_call_limit(self.lease, self.call_timeout, self.handler_statement_timeout)

    def __post_init__(self) -> None:
        if len(self.name) > MAX_NAME_LENGTH or "\x00" in self.name:  # else each registration would fail
            raise ValueError(f"name must have at most {MAX_NAME_LENGTH} characters, and no NUL")
        if self.groups is not None and (
            self.size != 1
            or self.prefetch
            or self.order is not Order.FIRST_IN_FIRST_OUT
            or self.condition is not Condition.NONE
        ):
            raise ValueError("groups have an order and sizes of their own: no size, prefetch, order or condition")
        for name, least in (("size", 1), ("workers", 1), ("prefetch", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, timedelta) and value <= timedelta(0):
                raise ValueError(f"{each.name} must be longer than 0, not {value}")
        if self.lease > MAX_STORED_DURATION:
            raise ValueError(f"lease must be at most {MAX_STORED_DURATION.days} days, not {self.lease}")
