"""Handling tasks in plain Python: workers, composites of steps, readers; on top of the queue, without Airflow or Spark.

def handle(task: Task) -> Result:
    return Result.SUCCESS if deliver(task.payload) else Result.SUSPENSION

Worker(dsn, "mail", handle).run()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_taskq.processing.handling import (
        BatchHandler,
        ForeignDecision,
        Outcome,
        TaskResultException,
        batch,
        each,
    )
    from airflow_provider_taskq.processing.settling import settle
    from airflow_provider_taskq.processing.supplement import SupplementError
    from airflow_provider_taskq.processing.work import FollowUp, Release, Work, tagged

__all__ = [
    "BatchHandler",
    "FollowUp",
    "ForeignDecision",
    "Outcome",
    "Release",
    "SupplementError",
    "TaskResultException",
    "Work",
    "batch",
    "each",
    "settle",
    "tagged",
]

# Where each name lives: loaded when it is asked for, so that a worker of functions loads no composite and no reader.
_HOMES = {
    "BatchHandler": "handling",
    "FollowUp": "work",
    "ForeignDecision": "handling",
    "Outcome": "handling",
    "Release": "work",
    "SupplementError": "supplement",
    "TaskResultException": "handling",
    "Work": "work",
    "batch": "handling",
    "each": "handling",
    "settle": "settling",
    "tagged": "work",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
