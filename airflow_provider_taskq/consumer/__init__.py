"""Consumer groups handle a topic's events. One consumer at a time handles the events of a partition, in order."""

from airflow_provider_taskq.consumer.config import ConsumerConfig
from airflow_provider_taskq.consumer.consumer import Consumer
from airflow_provider_taskq.consumer.group import ConsumerGroup, Interrupted, NonTransient
from airflow_provider_taskq.consumer.partition_loop import EventFailure
from airflow_provider_taskq.consumer.tracker import MemoryTracker, ProgressTracker

__all__ = [
    "Consumer",
    "ConsumerConfig",
    "ConsumerGroup",
    "EventFailure",
    "Interrupted",
    "MemoryTracker",
    "NonTransient",
    "ProgressTracker",
]
