"""Sensors: gates that wait for ready tasks, for task states, or for the release of groups."""

from airflow_provider_taskq.sensors.juncture import TaskQJunctureSensor
from airflow_provider_taskq.sensors.state import TaskQStateSensor
from airflow_provider_taskq.sensors.topic import TaskQSensor

__all__ = ["TaskQJunctureSensor", "TaskQSensor", "TaskQStateSensor"]
