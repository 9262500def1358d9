"""Hooks: the queue behind an Airflow connection."""

from airflow_provider_taskq.hooks.taskq import TaskQConnectionError, TaskQHook

__all__ = ["TaskQConnectionError", "TaskQHook"]
