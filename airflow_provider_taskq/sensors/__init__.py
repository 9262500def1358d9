"""Sensors: gates that open when a topic is ready."""

from airflow_provider_taskq.sensors.topic import TaskQSensor

__all__ = ["TaskQSensor"]
