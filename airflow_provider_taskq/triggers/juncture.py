"""Waits in the triggerer until groups of suspended tasks were released, and releases them."""

from collections.abc import Iterable
from typing import Any

from airflow_provider_taskq.triggers.base import GateTrigger
from airflow_provider_taskq.triggers.identifiers import groups_of
from airflow_provider_taskq.triggers.waits import JunctureWait


class TaskQJunctureTrigger(GateTrigger):
    """Fires once, when all groups were released; each is released as soon as it is complete, once under the name.

    The queue remembers under the name what was released, so that a triggerer that takes over goes on from there. Its
    event tells `{"status": "ready", "topic", "groups"}`, or a `message` with the status `error` where it cannot wait.

    :param topic: the topic's name.
    :param groups: lists of identifiers, or texts of such, as templates render them.
    :param name: under which name the queue remembers; None for the logical task.
    :param junction: what each identifier of a group needs, SINGULAR or ETERNAL.
    """

    def __init__(
        self,
        *,
        topic: str,
        groups: Iterable[Iterable[str] | str] | str,
        name: str | None = None,
        junction: str = "SINGULAR",
        **how: Any,
    ) -> None:
        super().__init__(**how)
        self.name = name
        self.topic = topic
        self.groups = groups if isinstance(groups, str) else [_plain(group) for group in groups]
        self.junction = junction

    @property
    def subject(self) -> dict[str, Any]:
        """Name, topic and groups."""
        return {"name": self.name, "topic": self.topic, "groups": self.groups, "junction": self.junction}

    @property
    def wait(self) -> JunctureWait:
        """The same for the watcher."""
        name = self.name or self.logical_task()
        return JunctureWait(name, self.topic, groups_of(self.groups), self.junction, self.poke_interval)

    def facts(self, outcome: int) -> dict[str, Any]:
        """The number of groups."""
        return {"status": "ready", "topic": self.topic, "groups": outcome}


def _plain(group: Iterable[str] | str) -> list[str] | str:
    """A group as it can be stored."""
    return group if isinstance(group, str) else list(group)
