"""Workers handle tasks in plain Python: with functions, or with composites of steps. Needs neither Airflow nor Spark.

def handle(task: Task) -> Result:
    return Result.SUCCESS if deliver(task.payload) else Result.SUSPENSION

Worker(dsn, "mail", handle).run()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_taskq.worker.batches import Batch as Batch
    from airflow_provider_taskq.worker.batches import BatchContext as BatchContext
    from airflow_provider_taskq.worker.batches import BatchOwner as BatchOwner
    from airflow_provider_taskq.worker.batches import FollowUp as FollowUp
    from airflow_provider_taskq.worker.batches import Release as Release
    from airflow_provider_taskq.worker.batches import SupplementError as SupplementError
    from airflow_provider_taskq.worker.composite import Composite as Composite
    from airflow_provider_taskq.worker.composite_run import StepMode as StepMode
    from airflow_provider_taskq.worker.config import GroupMode as GroupMode
    from airflow_provider_taskq.worker.config import Groups as Groups
    from airflow_provider_taskq.worker.config import SlowReports as SlowReports
    from airflow_provider_taskq.worker.connection import Timeouts as Timeouts
    from airflow_provider_taskq.worker.functions import batch as batch
    from airflow_provider_taskq.worker.functions import each as each
    from airflow_provider_taskq.worker.handlers import UNDECIDED as UNDECIDED
    from airflow_provider_taskq.worker.handlers import ForeignDecision as ForeignDecision
    from airflow_provider_taskq.worker.handlers import HandlerOutcome as HandlerOutcome
    from airflow_provider_taskq.worker.handlers import TaskResultException as TaskResultException
    from airflow_provider_taskq.worker.handlers import WorkHandler as WorkHandler
    from airflow_provider_taskq.worker.lease import HandlerStuck as HandlerStuck
    from airflow_provider_taskq.worker.limiter import Limiter as Limiter
    from airflow_provider_taskq.worker.limiter import PriorityLimiter as PriorityLimiter
    from airflow_provider_taskq.worker.listener import WorkerListener as WorkerListener
    from airflow_provider_taskq.worker.metrics_endpoint import MetricsEndpoint as MetricsEndpoint
    from airflow_provider_taskq.worker.runtime import WorkerStopped as WorkerStopped
    from airflow_provider_taskq.worker.scheduler import Scheduler as Scheduler
    from airflow_provider_taskq.worker.statistics import WorkerStatistics as WorkerStatistics
    from airflow_provider_taskq.worker.worker import PersistentWorker as PersistentWorker
    from airflow_provider_taskq.worker.worker import Worker as Worker

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
__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
