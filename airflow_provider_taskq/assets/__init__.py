"""Assets: topics with the URI scheme `taskq`."""

from airflow_provider_taskq.assets.taskq import create_asset, topic_asset

__all__ = ["create_asset", "topic_asset"]
