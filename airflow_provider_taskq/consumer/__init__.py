"""Consumer groups handle a topic's events. One consumer at a time handles the events of a partition, in order."""

from airflow_provider_taskq.consumer.config import (
    ConsumerConfig,
    ConsumerOptions,
    Exclusivity,
    Level,
    ProgressStore,
    Retry,
    merge_options,
)
from airflow_provider_taskq.consumer.consumer import AlreadyRunning, Consumer, Consumers
from airflow_provider_taskq.consumer.group import ConsumerGroup, Interrupted, NonTransient
from airflow_provider_taskq.consumer.partition_loop import EventFailure
from airflow_provider_taskq.consumer.progress import ProgressTracker

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
    "ProgressStore",
    "ProgressTracker",
    "Retry",
    "merge_options",
]
