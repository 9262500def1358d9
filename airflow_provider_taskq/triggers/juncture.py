"""The trigger of TaskQJunctureSensor: releases groups of suspended tasks, and waits until all are released."""

from collections.abc import Iterable
from typing import Any

from airflow_provider_taskq.parameters import parse_groups
from airflow_provider_taskq.queue.waits import JunctureWait
from airflow_provider_taskq.triggers.base import TaskQBaseTrigger


class TaskQJunctureTrigger(TaskQBaseTrigger):
    """Fires once, when all groups are released. It releases each group once, as soon as the group is complete.

    The queue records the released groups under `name`, so that another triggerer can continue.
    The event is `{"status": "ready", "topic", "groups"}`, or a `message` with the status `error`.

    :param topic: the topic's name.
    :param groups: lists of identifiers, or rendered text of such lists.
    :param name: the name under which the queue records releases; None for the logical task.
    :param junction: the state that a group needs, SINGULAR or ETERNAL.
    """

    wait_fields = ("name", "topic", "groups", "junction")

    def __init__(
        self,
        *,
        topic: str,
        groups: Iterable[Iterable[str] | str] | str,
        name: str | None = None,
        junction: str = "SINGULAR",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.name = name
        self.topic = topic
        # Airflow serializes the arguments as JSON, which has lists only.
        self.groups = groups if isinstance(groups, str) else [g if isinstance(g, str) else list(g) for g in groups]
        self.junction = junction

    @property
    def wait(self) -> JunctureWait:
        """The wait for the release of all groups, whose checks release them."""
        name = self.name or self.logical_task_name()
        return JunctureWait(name, self.topic, parse_groups(self.groups), self.junction, self.poke_interval)

    def event_payload(self, outcome: int) -> dict[str, Any]:
        """Return the event with the number of groups."""
        return {"status": "ready", "topic": self.topic, "groups": outcome}
