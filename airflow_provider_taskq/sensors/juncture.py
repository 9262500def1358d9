"""A gate that opens when groups of suspended tasks have been released, and that releases them."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import XComArg

from airflow_provider_taskq.operators.claims import logical_task
from airflow_provider_taskq.queue import Junction, UnknownTopic
from airflow_provider_taskq.sensors.base import TaskQGate
from airflow_provider_taskq.triggers.identifiers import groups_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_taskq.triggers.juncture import TaskQJunctureTrigger


class TaskQJunctureSensor(TaskQGate):
    """Waits until all groups of suspended tasks were released, and releases each as soon as it is complete.

    The queue remembers what was released for this logical task (`purge_group_releases` forgets it). So a retry, a
    cleared task or another triggerer goes on where the one before it stood, and releases no group twice.

    Returns `{"topic", "groups"}`: the number of groups.

    Modes poke, reschedule and deferrable do the same; a deferred gate is ended by its trigger.

    :param topic: the topic's name (templated).
    :param groups: lists of identifiers, or what another task returned (templated; text that is rendered to such a list
        is read as one).
    :param junction: what each identifier of a group needs: SINGULAR a suspended task, ETERNAL any but a redundant.
    :param deferrable: whether to wait in the triggerer.
    :param start_from_trigger: whether to begin in the triggerer, too (Airflow 3.3 for templates).
    :param poke_interval: seconds between two looks. Default: 60 in modes poke and reschedule, 1 in the triggerer.
    :param taskq_conn_id: the Airflow connection (templated).
    """

    template_fields: Sequence[str] = ("topic", "groups", "taskq_conn_id")
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
        self._start_in_triggerer(
            "airflow_provider_taskq.triggers.juncture.TaskQJunctureTrigger",
            topic=topic,
            groups=groups,
            junction=self.junction.value,
        )

    def look(self, context: "Context") -> dict[str, Any] | None:
        """Releases what is complete; the number of groups, if that were all."""
        from airflow_provider_taskq.triggers.waits import unknown_topic

        groups = groups_of(self.groups)
        try:
            with self.hook.transaction() as queue:
                missing = queue.release_groups_once(logical_task(context), self.topic, groups, self.junction)
        except UnknownTopic:
            raise unknown_topic(self.topic) from None
        self.log.info("%d of %d groups of topic %s are released.", len(groups) - len(missing), len(groups), self.topic)
        return None if missing else {"topic": self.topic, "groups": len(groups)}

    def _trigger(self, context: "Context", **how: Any) -> "TaskQJunctureTrigger":
        from airflow_provider_taskq.triggers.juncture import TaskQJunctureTrigger

        return TaskQJunctureTrigger(
            name=logical_task(context),
            topic=self.topic,
            groups=[list(group) for group in groups_of(self.groups)],
            junction=self.junction.value,
            **how,
        )
