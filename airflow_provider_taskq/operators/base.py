"""What all operators of TaskQ have in common: a connection, and a link to the topic's page."""

from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseOperator

from airflow_provider_taskq.links import TaskQTopicLink

if TYPE_CHECKING:
    from airflow_provider_taskq.hooks.taskq import TaskQHook


class TaskQOperator(BaseOperator):
    """Works on the queue behind an Airflow connection.

    Each operator returns a dict, and `multiple_outputs` stores its values one by one too, so that
    `task.output["topic"]` resolves.

    :param taskq_conn_id: the Airflow connection (templated).
    """

    ui_color = "#d9ead3"
    operator_extra_links = (TaskQTopicLink(),)

    def __init__(self, *, taskq_conn_id: str = "taskq_default", multiple_outputs: bool = True, **kwargs: Any) -> None:
        super().__init__(multiple_outputs=multiple_outputs, **kwargs)
        self.taskq_conn_id = taskq_conn_id

    @cached_property
    def hook(self) -> "TaskQHook":
        """The hook; imported here, as what it builds on takes seconds that a DAG processor need not spend."""
        from airflow_provider_taskq.hooks.taskq import TaskQHook

        return TaskQHook(taskq_conn_id=self.taskq_conn_id)
