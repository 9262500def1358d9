"""Readers: groups of handlers for a topic's events, each partition led by one program at a time."""

from airflow_provider_taskq.consumer.config import (
    Leadership,
    Level,
    Progress,
    Properties,
    Retry,
    Settings,
    merged,
)
from airflow_provider_taskq.consumer.consumer import Reader
from airflow_provider_taskq.consumer.errors import AlreadyRunning, Interrupted, NonTransient
from airflow_provider_taskq.consumer.group import Group
from airflow_provider_taskq.consumer.partition_loop import Failure
from airflow_provider_taskq.consumer.progress import ProgressTracker
from airflow_provider_taskq.consumer.readers import Readers

__all__ = [
    "AlreadyRunning",
    "Failure",
    "Group",
    "Interrupted",
    "Leadership",
    "Level",
    "NonTransient",
    "Progress",
    "ProgressTracker",
    "Properties",
    "Reader",
    "Readers",
    "Retry",
    "Settings",
    "merged",
]
