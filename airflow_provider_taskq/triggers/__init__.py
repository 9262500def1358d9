"""Triggers: waits in Airflow's triggerer."""

from airflow_provider_taskq.triggers.topic import TaskQTrigger

__all__ = ["TaskQTrigger"]
