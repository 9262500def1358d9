"""Notifiers: what Airflow's callbacks push."""

from airflow_provider_taskq.notifications.taskq import TaskQNotifier

__all__ = ["TaskQNotifier"]
