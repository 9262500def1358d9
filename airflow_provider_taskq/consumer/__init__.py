"""Readers: groups of handlers for a topic's events, each partition led by one program at a time."""

from airflow_provider_taskq.consumer.config import (
    ConsumerConfig,
    ConsumerOptions,
    Exclusivity,
    Level,
    Progress,
    Retry,
    merge_options,
)
from airflow_provider_taskq.consumer.consumer import Consumer
from airflow_provider_taskq.consumer.errors import AlreadyRunning, Interrupted, NonTransient
from airflow_provider_taskq.consumer.group import ConsumerGroup
from airflow_provider_taskq.consumer.partition_loop import EventFailure
from airflow_provider_taskq.consumer.progress import ProgressTracker
from airflow_provider_taskq.consumer.readers import Consumers

__all__ = [
    "AlreadyRunning",
    "Consumer",
    "ConsumerConfig",
    "ConsumerGroup",
    "ConsumerOptions",
    "Consumers",
    "EventFailure",
    "Exclusivity",
    "Interrupted",
    "Level",
    "NonTransient",
    "Progress",
    "ProgressTracker",
    "Retry",
    "merge_options",
]
