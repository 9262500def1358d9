"""Triggers: wait on the queue in Airflow's triggerer."""

from airflow_provider_taskq.triggers.event import TaskQEventTrigger
from airflow_provider_taskq.triggers.juncture import TaskQJunctureTrigger
from airflow_provider_taskq.triggers.state import TaskQStateTrigger
from airflow_provider_taskq.triggers.topic import TaskQTrigger

__all__ = ["TaskQEventTrigger", "TaskQJunctureTrigger", "TaskQStateTrigger", "TaskQTrigger"]
