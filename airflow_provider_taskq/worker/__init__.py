"""Handling tasks in plain Python: workers, composites of steps; on top of the queue, without Airflow or Spark.

    def handle(task: Task) -> Result:
        return Result.SUCCESS if deliver(task.payload) else Result.SUSPENSION

    Worker(dsn, "mail", handle).run()

Every name is loaded when it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_taskq.worker.activation import PersistentWorker
    from airflow_provider_taskq.worker.batches import Batches
    from airflow_provider_taskq.worker.composite import Composite, CompositeClosed, Mode
    from airflow_provider_taskq.worker.finishing import WorkerStopped
    from airflow_provider_taskq.worker.handling import (
        BatchHandler,
        ForeignDecision,
        Outcome,
        TaskResultException,
        batch,
        each,
    )
    from airflow_provider_taskq.worker.health import Health, Signal
    from airflow_provider_taskq.worker.limiter import Bounded, Limiter, NoLimit, Prioritised
    from airflow_provider_taskq.worker.listener import FatalListener, WorkerListener
    from airflow_provider_taskq.worker.settings import Pending
    from airflow_provider_taskq.worker.settling import settle
    from airflow_provider_taskq.worker.statistics import WorkerStatistics
    from airflow_provider_taskq.worker.stuck import HandlerStuck
    from airflow_provider_taskq.worker.supplement import SupplementError
    from airflow_provider_taskq.worker.ticker import Ticker
    from airflow_provider_taskq.worker.work import FollowUp, Release, Work, tagged
    from airflow_provider_taskq.worker.worker import Worker

__all__ = [
    "BatchHandler",
    "Batches",
    "Bounded",
    "Composite",
    "CompositeClosed",
    "FatalListener",
    "FollowUp",
    "ForeignDecision",
    "HandlerStuck",
    "Health",
    "Limiter",
    "Mode",
    "NoLimit",
    "Outcome",
    "Pending",
    "PersistentWorker",
    "Prioritised",
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

# Where each name lives: loaded when it is asked for, so that a worker of functions loads no composite.
_HOMES = {
    "BatchHandler": "handling",
    "Batches": "batches",
    "Bounded": "limiter",
    "Composite": "composite",
    "CompositeClosed": "composite",
    "FatalListener": "listener",
    "FollowUp": "work",
    "ForeignDecision": "handling",
    "HandlerStuck": "stuck",
    "Health": "health",
    "Limiter": "limiter",
    "Mode": "composite",
    "NoLimit": "limiter",
    "Outcome": "handling",
    "Pending": "settings",
    "PersistentWorker": "activation",
    "Prioritised": "limiter",
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
