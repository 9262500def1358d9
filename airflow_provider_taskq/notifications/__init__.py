"""Notifiers, which push a task in a callback."""

from airflow_provider_taskq.notifications.taskq import TaskQNotifier

__all__ = ["TaskQNotifier"]
