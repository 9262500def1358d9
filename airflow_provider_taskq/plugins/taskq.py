"""The plugin that Airflow loads."""

from airflow.plugins_manager import AirflowPlugin


class TaskQPlugin(AirflowPlugin):
    """TaskQ's page and its API."""

    name = "taskq"
