"""Links from Airflow's tasks to TaskQ's own pages."""

from airflow_provider_taskq.links.topic import TaskQTopicLink

__all__ = ["TaskQTopicLink"]
