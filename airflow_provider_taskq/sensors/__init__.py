"""Sensors: gates that open when a topic is ready, when tasks have come to a state, or when groups were released."""

from airflow_provider_taskq.sensors.juncture import TaskQJunctureSensor
from airflow_provider_taskq.sensors.state import TaskQStateSensor
from airflow_provider_taskq.sensors.topic import TaskQSensor

__all__ = ["TaskQJunctureSensor", "TaskQSensor", "TaskQStateSensor"]
