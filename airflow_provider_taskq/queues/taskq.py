"""The provider behind `MessageQueueTrigger(scheme="taskq", topic=..., ...)`; needs the extra `messaging`."""

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from airflow.providers.common.compat.sdk import AirflowOptionalProviderFeatureException

try:
    from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider
except ImportError as error:
    raise AirflowOptionalProviderFeatureException(
        "MessageQueueTrigger needs apache-airflow-providers-common-messaging:"
        " pip install 'apache-airflow-providers-common-messaging>=2'"
    ) from error

if TYPE_CHECKING:
    from airflow.triggers.base import BaseEventTrigger


class TaskQMessageQueueProvider(BaseMessageQueueProvider):
    """Makes topics available as message queues.

    A MessageQueueTrigger names the topic by `scheme="taskq"` and the arguments of TaskQEventTrigger, or by the queue
    URI `taskq://conn_id/topic`.
    """

    scheme = "taskq"

    def queue_matches(self, queue: str) -> bool:
        """Return whether a URI has the scheme `taskq`."""
        return queue.startswith("taskq://")

    def trigger_class(self) -> "type[BaseEventTrigger]":
        """Return TaskQEventTrigger."""
        from airflow_provider_taskq.triggers.event import TaskQEventTrigger

        return TaskQEventTrigger

    def trigger_kwargs(self, queue: str, **kwargs: Any) -> dict[str, Any]:  # noqa: ARG002  the base's signature
        """Return the topic and the Airflow connection of a URI. The default connection is `taskq_default`.

        Raises ValueError for another form of URI than `taskq://conn_id/topic`.
        """
        uri = urlsplit(queue)
        topic = unquote(uri.path.removeprefix("/"))
        if not topic or "/" in uri.path[1:] or uri.query or uri.fragment:
            raise ValueError("invalid queue URI: expected taskq://conn_id/topic with a percent-encoded topic")
        return {"topic": topic, "taskq_conn_id": unquote(uri.netloc) or "taskq_default"}
