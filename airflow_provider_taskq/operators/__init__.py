"""Operators: push and complete tasks from a DAG, and keep the queue in order."""

from airflow_provider_taskq.operators.complete import TaskQCompleteOperator
from airflow_provider_taskq.operators.expire import TaskQExpireOperator
from airflow_provider_taskq.operators.health import TaskQHealthOperator
from airflow_provider_taskq.operators.purge import TaskQPurgeOperator
from airflow_provider_taskq.operators.push import TaskQPushOperator
from airflow_provider_taskq.operators.revive import TaskQReviveOperator
from airflow_provider_taskq.operators.ticks import TaskQTicksOperator

__all__ = [
    "TaskQCompleteOperator",
    "TaskQExpireOperator",
    "TaskQHealthOperator",
    "TaskQPurgeOperator",
    "TaskQPushOperator",
    "TaskQReviveOperator",
    "TaskQTicksOperator",
]
