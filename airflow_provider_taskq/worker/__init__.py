"""Workers handle tasks in plain Python: with functions, or with composites of steps. Needs neither Airflow nor Spark.

def handle(task: Task) -> Result:
    return Result.SUCCESS if deliver(task.payload) else Result.SUSPENSION

Worker(dsn, "mail", handle).run()
"""

from airflow_provider_taskq.queue.session import Timeouts
from airflow_provider_taskq.worker.batches import Batch, BatchContext, BatchOwner, FollowUp, Release, SupplementError
from airflow_provider_taskq.worker.composite import Composite
from airflow_provider_taskq.worker.composite_run import StepMode
from airflow_provider_taskq.worker.config import GroupMode, Groups, SlowReports
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
