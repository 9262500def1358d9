"""The link from a task instance to the page of its topic."""

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from airflow.providers.common.compat.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey

# Relative to the <base> of Airflow's interface, so that it works behind any URL prefix.
PAGE = "plugin/taskq"


class TaskQTopicLink(BaseOperatorLink):
    """Links to the page of an operator's topic, or to the overview if the operator has no topic.

    Airflow calls `get_link` in the worker, after it has rendered the fields, and stores the text. So a deferred gate
    has the link too.
    """

    name = "TaskQ topic"

    def get_link(self, operator: Any, *, ti_key: "TaskInstanceKey") -> str:  # noqa: ARG002  Airflow's signature
        """Return the URL of the page, from the rendered topic and connection."""
        return topic_page(getattr(operator, "topic", None), operator.taskq_conn_id)


def topic_page(topic: str | None, taskq_conn_id: str) -> str:
    """Return the URL of a topic's page, or of the overview."""
    query = {"topic": topic, "conn_id": taskq_conn_id}
    return f"{PAGE}?{urlencode({name: value for name, value in query.items() if value})}"
