"""The gate that releases groups of suspended tasks, and opens when all are released."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import XComArg

from airflow_provider_taskq.parameters import logical_task_name, parse_groups
from airflow_provider_taskq.queue import Junction
from airflow_provider_taskq.queue.waits import JunctureWait
from airflow_provider_taskq.sensors.base import TaskQBaseSensor
from airflow_provider_taskq.triggers.juncture import TaskQJunctureTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context


class TaskQJunctureSensor(TaskQBaseSensor):
    """Releases each group of suspended tasks as soon as the group is complete, and waits until all are released.

    The queue records releases under the logical task, until `purge_owners` deletes the records. So a retry, a
    cleared task or another triggerer continues with the groups that are left, and releases no group twice.

    Returns `{"topic", "groups"}`; `groups` is the number of groups. TaskQBaseSensor documents the modes and the
    parameters of every gate.

    :param topic: the topic's name (templated).
    :param groups: lists of identifiers, the output of another task, or the rendered text of such a list (templated).
    :param junction: SINGULAR if each identifier of a group needs a suspended task, ETERNAL if it needs any task but a
        redundant one.
    """

    template_fields: Sequence[str] = ("topic", "groups", "taskq_conn_id")
    trigger_type = TaskQJunctureTrigger
    ui_color = "#cfe2f3"

    def __init__(
        self,
        *,
        topic: str,
        groups: Iterable[Iterable[str] | str | XComArg] | str | XComArg,
        junction: Junction | str = Junction.SINGULAR,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.groups = groups
        self.junction = Junction(junction)
        self._start_in_triggerer()

    def check(self, context: "Context") -> dict[str, Any] | None:
        """Release the complete groups. Return the number of groups if all are released, else None."""
        groups = parse_groups(self.groups)
        with self.hook.transaction() as queue:
            missing = queue.release_groups_once(logical_task_name(context["ti"]), self.topic, groups, self.junction)
        released = len(groups) - len(missing)
        self.log.info("Checked groups: topic=%s released=%d groups=%d", self.topic, released, len(groups))
        return None if missing else {"topic": self.topic, "groups": len(groups)}

    def _wait(self, context: "Context") -> JunctureWait:
        name = logical_task_name(context["ti"])
        return JunctureWait(name, self.topic, parse_groups(self.groups), self.junction.value, self.poke_interval)

    def _rendered_fields(self, context: "Context") -> dict[str, Any]:
        groups = [list(group) for group in parse_groups(self.groups)]
        return {"name": logical_task_name(context["ti"]), "groups": groups}
