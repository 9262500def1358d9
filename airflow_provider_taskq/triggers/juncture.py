"""Waits in the triggerer until groups of suspended tasks were released, and releases them."""

from collections.abc import Iterable
from typing import Any

from airflow_provider_taskq.triggers.gate import GateTrigger
from airflow_provider_taskq.triggers.waits import JunctureWait


class TaskQJunctureTrigger(GateTrigger):
    """Fires once, when all groups were released; each is released as soon as it is complete, once under the name.

    The queue remembers under the name what was released, so that a triggerer that takes over goes on from there. Its
    event tells `{"status": "ready", "topic", "groups"}`, or a `message` with the status `error` where it cannot wait.

    :param name: under which name the queue remembers.
    :param topic: the topic's name.
    :param groups: lists of identifiers.
    :param junction: what each identifier of a group needs, SINGULAR or ETERNAL.
    """

    def __init__(
        self, *, name: str, topic: str, groups: Iterable[Iterable[str]], junction: str = "SINGULAR", **how: Any
    ) -> None:
        super().__init__(**how)
        self.name = name
        self.topic = topic
        self.groups = [list(group) for group in groups]
        self.junction = junction

    @property
    def subject(self) -> dict[str, Any]:
        """Name, topic and groups."""
        return {"name": self.name, "topic": self.topic, "groups": self.groups, "junction": self.junction}

    @property
    def wait(self) -> JunctureWait:
        """The same for the watcher."""
        groups = tuple(tuple(group) for group in self.groups)
        return JunctureWait(self.name, self.topic, groups, self.junction, self.poke_interval)

    def facts(self, outcome: int) -> dict[str, Any]:
        """The number of groups."""
        return {"status": "ready", "topic": self.topic, "groups": outcome}
