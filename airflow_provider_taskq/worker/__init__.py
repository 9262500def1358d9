"""Handling tasks in plain Python: workers, composites of steps; on top of the queue, without Airflow or Spark.

    def handle(task: Task) -> Result:
        return Result.SUCCESS if deliver(task.payload) else Result.SUSPENSION

    Worker(dsn, "mail", handle).run()

Every name is loaded when it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_taskq.worker.batches import Batch, FollowUp, Release, tagged
    from airflow_provider_taskq.worker.commit import commit_batch
    from airflow_provider_taskq.worker.composite import Composite, CompositeClosed, StepMode
    from airflow_provider_taskq.worker.config import Pending
    from airflow_provider_taskq.worker.grouped import GroupedWorker
    from airflow_provider_taskq.worker.handlers import (
        BatchHandler,
        ForeignDecision,
        Outcome,
        TaskResultException,
        batch,
        each,
    )
    from airflow_provider_taskq.worker.health import HealthMonitor, HealthSignal
    from airflow_provider_taskq.worker.limiter import BoundedLimiter, Limiter, NoLimit, PriorityLimiter
    from airflow_provider_taskq.worker.listener import FatalListener, WorkerListener
    from airflow_provider_taskq.worker.persistent import PersistentWorker
    from airflow_provider_taskq.worker.runtime import WorkerStopped
    from airflow_provider_taskq.worker.scheduler import Scheduler
    from airflow_provider_taskq.worker.statistics import WorkerStatistics
    from airflow_provider_taskq.worker.supplement import SupplementError
    from airflow_provider_taskq.worker.watchdog import HandlerStuck
    from airflow_provider_taskq.worker.worker import Worker

__all__ = [
    "Batch",
    "BatchHandler",
    "BoundedLimiter",
    "Composite",
    "CompositeClosed",
    "FatalListener",
    "FollowUp",
    "ForeignDecision",
    "GroupedWorker",
    "HandlerStuck",
    "HealthMonitor",
    "HealthSignal",
    "Limiter",
    "NoLimit",
    "Outcome",
    "Pending",
    "PersistentWorker",
    "PriorityLimiter",
    "Release",
    "Scheduler",
    "StepMode",
    "SupplementError",
    "TaskResultException",
    "Worker",
    "WorkerListener",
    "WorkerStatistics",
    "WorkerStopped",
    "batch",
    "commit_batch",
    "each",
    "tagged",
]

# Where each name lives: loaded when it is asked for, so that a worker of functions loads no composite.
_HOMES = {
    "BatchHandler": "handlers",
    "GroupedWorker": "grouped",
    "BoundedLimiter": "limiter",
    "Composite": "composite",
    "CompositeClosed": "composite",
    "FatalListener": "listener",
    "FollowUp": "batches",
    "ForeignDecision": "handlers",
    "HandlerStuck": "watchdog",
    "HealthMonitor": "health",
    "Limiter": "limiter",
    "StepMode": "composite",
    "NoLimit": "limiter",
    "Outcome": "handlers",
    "Pending": "config",
    "PersistentWorker": "persistent",
    "PriorityLimiter": "limiter",
    "Release": "batches",
    "HealthSignal": "health",
    "SupplementError": "supplement",
    "TaskResultException": "handlers",
    "Scheduler": "scheduler",
    "Batch": "batches",
    "Worker": "worker",
    "WorkerListener": "listener",
    "WorkerStatistics": "statistics",
    "WorkerStopped": "runtime",
    "batch": "handlers",
    "each": "handlers",
    "commit_batch": "commit",
    "tagged": "batches",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
