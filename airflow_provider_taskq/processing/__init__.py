"""Handling tasks in plain Python: workers, composites of steps, readers; on top of the queue, without Airflow or Spark.

    def handle(task: Task) -> Result:
        return Result.SUCCESS if deliver(task.payload) else Result.SUSPENSION

    Worker(dsn, "mail", handle).run()

Every name is loaded when it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_taskq.processing.activation import PersistentWorker
    from airflow_provider_taskq.processing.batches import Batches
    from airflow_provider_taskq.processing.composite import Composite, CompositeClosed, Mode
    from airflow_provider_taskq.processing.finishing import WorkerStopped
    from airflow_provider_taskq.processing.handling import (
        BatchHandler,
        ForeignDecision,
        Outcome,
        TaskResultException,
        batch,
        each,
    )
    from airflow_provider_taskq.processing.health import Health, Signal
    from airflow_provider_taskq.processing.limiter import Bounded, Limiter, NoLimit, Prioritised
    from airflow_provider_taskq.processing.listener import FatalListener, WorkerListener
    from airflow_provider_taskq.processing.reader import Group, Reader, Readers
    from airflow_provider_taskq.processing.settings import Pending
    from airflow_provider_taskq.processing.settling import settle
    from airflow_provider_taskq.processing.statistics import WorkerStatistics
    from airflow_provider_taskq.processing.stuck import HandlerStuck
    from airflow_provider_taskq.processing.supplement import SupplementError
    from airflow_provider_taskq.processing.ticker import Ticker
    from airflow_provider_taskq.processing.work import FollowUp, Release, Work, tagged
    from airflow_provider_taskq.processing.worker import Worker

__all__ = [
    "BatchHandler",
    "Batches",
    "Bounded",
    "Composite",
    "CompositeClosed",
    "FatalListener",
    "FollowUp",
    "ForeignDecision",
    "Group",
    "HandlerStuck",
    "Health",
    "Limiter",
    "Mode",
    "NoLimit",
    "Outcome",
    "Pending",
    "PersistentWorker",
    "Prioritised",
    "Reader",
    "Readers",
    "Release",
    "Signal",
    "SupplementError",
    "TaskResultException",
    "Ticker",
    "Work",
    "Worker",
    "WorkerListener",
    "WorkerStatistics",
    "WorkerStopped",
    "batch",
    "each",
    "settle",
    "tagged",
]

# Where each name lives: loaded when it is asked for, so that a worker of functions loads no composite and no reader.
_HOMES = {
    "BatchHandler": "handling",
    "Batches": "batches",
    "Bounded": "limiter",
    "Composite": "composite",
    "CompositeClosed": "composite",
    "FatalListener": "listener",
    "FollowUp": "work",
    "ForeignDecision": "handling",
    "Group": "reader",
    "HandlerStuck": "stuck",
    "Health": "health",
    "Limiter": "limiter",
    "Mode": "composite",
    "NoLimit": "limiter",
    "Outcome": "handling",
    "Pending": "settings",
    "PersistentWorker": "activation",
    "Prioritised": "limiter",
    "Reader": "reader",
    "Readers": "reader",
    "Release": "work",
    "Signal": "health",
    "SupplementError": "supplement",
    "TaskResultException": "handling",
    "Ticker": "ticker",
    "Work": "work",
    "Worker": "worker",
    "WorkerListener": "listener",
    "WorkerStatistics": "statistics",
    "WorkerStopped": "finishing",
    "batch": "handling",
    "each": "handling",
    "settle": "settling",
    "tagged": "work",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
