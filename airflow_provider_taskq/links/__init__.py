"""Extra links from task instances to the TaskQ page."""

from airflow_provider_taskq.links.topic import TaskQTopicLink

__all__ = ["TaskQTopicLink"]
