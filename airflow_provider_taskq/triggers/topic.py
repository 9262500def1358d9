"""Waits in the triggerer until a topic has tasks."""

from typing import Any

from airflow_provider_taskq.triggers.gate import GateTrigger
from airflow_provider_taskq.triggers.waits import ReadyWait


class TaskQTrigger(GateTrigger):
    """Fires once, when a topic has so many tasks to be polled. It only looks: what it sees, others may take.

    All triggers of a process that use one Airflow connection share one database connection and one query a look; with
    `listen: true` in its extra, they are woken by the queue's notifications as well, on a second one. A lost
    connection is made anew; a topic that is not known, or a schema that is not there, ends the wait at once.

    Its event tells `{"status": "ready", "topic", "ready"}`, or a `message` with the status `error`.

    :param topic: the topic's name.
    :param min_tasks: how many tasks are enough.
    :param condition: under which condition the tasks are counted.
    :param max_wait: seconds; once the topic's oldest due task has waited so long, any ready task is enough.
    """

    def __init__(
        self,
        *,
        topic: str,
        min_tasks: int = 1,
        condition: str = "NONE",
        max_wait: float | None = None,
        **how: Any,
    ) -> None:
        super().__init__(**how)
        self.topic = topic
        self.min_tasks = min_tasks
        self.condition = condition
        self.max_wait = max_wait

    @property
    def subject(self) -> dict[str, Any]:
        """The topic, and when it is ready."""
        return {
            "topic": self.topic,
            "min_tasks": self.min_tasks,
            "condition": self.condition,
            "max_wait": self.max_wait,
        }

    @property
    def wait(self) -> ReadyWait:
        """The same for the watcher."""
        return ReadyWait(self.topic, self.min_tasks, self.condition, self.max_wait, self.poke_interval)

    def facts(self, outcome: int) -> dict[str, Any]:
        """How many tasks are ready, counted to as many as open the gate: others may have asked for more."""
        return {"status": "ready", "topic": self.topic, "ready": min(outcome, self.min_tasks)}
