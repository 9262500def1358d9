"""Handling tasks in plain Python: workers, composites of steps; on top of the queue, without Airflow or Spark.

    def handle(task: Task) -> Result:
        return Result.SUCCESS if deliver(task.payload) else Result.SUSPENSION

    Worker(dsn, "mail", handle).run()

Every name is loaded when it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_taskq.worker.batch import FollowUp, Release, Work, tagged
    from airflow_provider_taskq.worker.commit import settle
    from airflow_provider_taskq.worker.composite import Composite, CompositeClosed, Mode
    from airflow_provider_taskq.worker.config import Pending
    from airflow_provider_taskq.worker.finishing import WorkerStopped
    from airflow_provider_taskq.worker.grouped import Batches
    from airflow_provider_taskq.worker.handlers import (
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
    from airflow_provider_taskq.worker.persistent import PersistentWorker
    from airflow_provider_taskq.worker.scheduler import Ticker
    from airflow_provider_taskq.worker.statistics import WorkerStatistics
    from airflow_provider_taskq.worker.supplement import SupplementError
    from airflow_provider_taskq.worker.watchdog import HandlerStuck
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
    "BatchHandler": "handlers",
    "Batches": "grouped",
    "Bounded": "limiter",
    "Composite": "composite",
    "CompositeClosed": "composite",
    "FatalListener": "listener",
    "FollowUp": "batch",
    "ForeignDecision": "handlers",
    "HandlerStuck": "watchdog",
    "Health": "health",
    "Limiter": "limiter",
    "Mode": "composite",
    "NoLimit": "limiter",
    "Outcome": "handlers",
    "Pending": "config",
    "PersistentWorker": "persistent",
    "Prioritised": "limiter",
    "Release": "batch",
    "Signal": "health",
    "SupplementError": "supplement",
    "TaskResultException": "handlers",
    "Ticker": "scheduler",
    "Work": "batch",
    "Worker": "worker",
    "WorkerListener": "listener",
    "WorkerStatistics": "statistics",
    "WorkerStopped": "finishing",
    "batch": "handlers",
    "each": "handlers",
    "settle": "commit",
    "tagged": "batch",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
