"""Base classes of the operators and sensors."""

from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseOperator

from airflow_provider_taskq import hooks
from airflow_provider_taskq.links import TaskQTopicLink
from airflow_provider_taskq.queue.encoding import JsonDefault

if TYPE_CHECKING:
    import psycopg


class TaskQHookMixin:
    """Creates the hook of `taskq_conn_id` on first use."""

    taskq_conn_id: str
    json_default: JsonDefault | None = None

    @cached_property
    def hook(self) -> "hooks.TaskQHook":
        """The hook of the Airflow connection."""
        return hooks.TaskQHook(taskq_conn_id=self.taskq_conn_id, json_default=self.json_default)


class TaskQBaseOperator(TaskQHookMixin, BaseOperator):
    """Base class of the operators.

    Every operator returns a dict. `multiple_outputs` also stores each value as an XCom of its own, so that
    `task.output["topic"]` resolves.

    :param taskq_conn_id: the Airflow connection (templated).
    """

    ui_color = "#d9ead3"
    operator_extra_links = (TaskQTopicLink(),)

    def __init__(self, *, taskq_conn_id: str = "taskq_default", multiple_outputs: bool = True, **kwargs: Any) -> None:
        super().__init__(multiple_outputs=multiple_outputs, **kwargs)
        self.taskq_conn_id = taskq_conn_id


def database_now(connection: "psycopg.Connection[Any]") -> datetime:
    """Return the time of the database's clock, which decides all times in the queue."""
    row = connection.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None  # noqa: S101  for the type checker
    moment: datetime = row[0]
    return moment
