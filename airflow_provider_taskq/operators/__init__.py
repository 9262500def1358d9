"""Operators: push and complete tasks from a DAG."""

from airflow_provider_taskq.operators.complete import TaskQCompleteOperator
from airflow_provider_taskq.operators.push import TaskQPushOperator

__all__ = ["TaskQCompleteOperator", "TaskQPushOperator"]
