"""Operators: push, process and complete tasks, and maintain the queue."""

from typing import TYPE_CHECKING, Any

from airflow_provider_taskq.operators.complete import TaskQCompleteOperator
from airflow_provider_taskq.operators.expire import TaskQExpireOperator
from airflow_provider_taskq.operators.health import TaskQHealthOperator
from airflow_provider_taskq.operators.process import TaskQProcessOperator
from airflow_provider_taskq.operators.purge import TaskQPurgeOperator
from airflow_provider_taskq.operators.push import TaskQPushOperator
from airflow_provider_taskq.operators.release import TaskQReleaseOperator
from airflow_provider_taskq.operators.revive import TaskQReviveOperator
from airflow_provider_taskq.operators.ticks import TaskQTicksOperator

if TYPE_CHECKING:
    from airflow_provider_taskq.operators.spark_submit import TaskQSparkSubmitOperator

__all__ = [
    "TaskQCompleteOperator",
    "TaskQExpireOperator",
    "TaskQHealthOperator",
    "TaskQProcessOperator",
    "TaskQPurgeOperator",
    "TaskQPushOperator",
    "TaskQReleaseOperator",
    "TaskQReviveOperator",
    "TaskQSparkSubmitOperator",
    "TaskQTicksOperator",
]


def __getattr__(name: str) -> Any:
    # This operator imports the Spark provider, which takes seconds.
    if name != "TaskQSparkSubmitOperator":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from airflow_provider_taskq.operators.spark_submit import TaskQSparkSubmitOperator

    return TaskQSparkSubmitOperator
