"""Workers handle tasks in plain Python: with functions, or with composites of steps. Needs neither Airflow nor Spark.

def handle(task: Task) -> Result:
    return Result.SUCCESS if deliver(task.payload) else Result.SUSPENSION

Worker(dsn, "mail", handle).run()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_taskq.worker.batches import (
        Batch,
        BatchContext,
        BatchOwner,
        FollowUp,
        Release,
        SupplementError,
    )
    from airflow_provider_taskq.worker.composite import Composite
    from airflow_provider_taskq.worker.composite_run import StepMode
    from airflow_provider_taskq.worker.config import GroupMode, Groups, SlowReports
    from airflow_provider_taskq.worker.connection import Timeouts
    from airflow_provider_taskq.worker.functions import batch, each
    from airflow_provider_taskq.worker.handlers import (
        UNDECIDED,
        ForeignDecision,
        HandlerOutcome,
        TaskResultException,
        WorkHandler,
    )
    from airflow_provider_taskq.worker.lease import HandlerStuck
    from airflow_provider_taskq.worker.limiter import Limiter, PriorityLimiter
    from airflow_provider_taskq.worker.listener import WorkerListener
    from airflow_provider_taskq.worker.metrics_endpoint import MetricsEndpoint
    from airflow_provider_taskq.worker.runtime import WorkerStopped
    from airflow_provider_taskq.worker.scheduler import Scheduler
    from airflow_provider_taskq.worker.statistics import WorkerStatistics
    from airflow_provider_taskq.worker.worker import PersistentWorker, Worker

# __getattr__ imports a module when one of its names is used, so a worker of plain functions loads no composites.
_MODULES = {
    "batches": ("Batch", "BatchContext", "BatchOwner", "FollowUp", "Release", "SupplementError"),
    "composite": ("Composite",),
    "composite_run": ("StepMode",),
    "config": ("GroupMode", "Groups", "SlowReports"),
    "connection": ("Timeouts",),
    "functions": ("batch", "each"),
    "handlers": ("UNDECIDED", "ForeignDecision", "HandlerOutcome", "TaskResultException", "WorkHandler"),
    "limiter": ("Limiter", "PriorityLimiter"),
    "listener": ("WorkerListener",),
    "metrics_endpoint": ("MetricsEndpoint",),
    "runtime": ("WorkerStopped",),
    "scheduler": ("Scheduler",),
    "statistics": ("WorkerStatistics",),
    "lease": ("HandlerStuck",),
    "worker": ("PersistentWorker", "Worker"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "UNDECIDED",
    "Batch",
    "BatchContext",
    "BatchOwner",
    "Composite",
    "FollowUp",
    "ForeignDecision",
    "GroupMode",
    "Groups",
    "HandlerOutcome",
    "HandlerStuck",
    "Limiter",
    "MetricsEndpoint",
    "PersistentWorker",
    "PriorityLimiter",
    "Release",
    "Scheduler",
    "SlowReports",
    "StepMode",
    "SupplementError",
    "TaskResultException",
    "Timeouts",
    "WorkHandler",
    "Worker",
    "WorkerListener",
    "WorkerStatistics",
    "WorkerStopped",
    "batch",
    "each",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
