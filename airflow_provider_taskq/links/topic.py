"""The link from a task of a DAG to the page of its topic."""

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from airflow.providers.common.compat.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey

# Relative to the <base> of Airflow's interface, so that it is right behind any prefix.
PAGE = "plugin/taskq"


class TaskQTopicLink(BaseOperatorLink):
    """Shows the topic that an operator or sensor works on; TaskQ's overview for one that works on all.

    Airflow asks for it in the worker, after the fields were rendered, and stores the text: a deferred gate has it too.
    """

    name = "TaskQ topic"

    def get_link(self, operator: Any, *, ti_key: "TaskInstanceKey") -> str:  # noqa: ARG002  Airflow's signature
        """The address, with the rendered topic and connection escaped."""
        return topic_page(getattr(operator, "topic", None), operator.taskq_conn_id)


def topic_page(topic: str | None, taskq_conn_id: str) -> str:
    """The address of a topic's page, or of the overview."""
    asked = {"topic": topic, "conn_id": taskq_conn_id}
    return f"{PAGE}?{urlencode({name: value for name, value in asked.items() if value})}"
