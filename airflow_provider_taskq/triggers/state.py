"""The trigger of TaskQStateSensor: waits until tasks reach a state."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from airflow_provider_taskq.parameters import parse_identifiers
from airflow_provider_taskq.queue.waits import StateWait
from airflow_provider_taskq.triggers.base import TaskQBaseTrigger

_NAMED_IDENTIFIERS = 10  # in a message


class TaskQStateTrigger(TaskQBaseTrigger):
    """Fires once, when the newest task of each identifier is in `states`, or one of them is in `failed_states`.

    The event is `{"status": "ready", "topic", "states"}` with the number of tasks by state, or a `message` with the
    status `failed` or `error`.

    :param topic: the topic's name.
    :param identifiers: the identifiers, or the rendered text of a list of them.
    :param states: the names of the states that open the gate.
    :param failed_states: the names of the states that fail the gate.
    """

    wait_fields = ("topic", "identifiers", "states", "failed_states")

    def __init__(
        self,
        *,
        topic: str,
        identifiers: Iterable[str] | str,
        states: Iterable[str] = ("SUCCEEDED",),
        failed_states: Iterable[str] = ("FAILED",),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.identifiers = identifiers if isinstance(identifiers, str) else list(identifiers)
        self.states = sorted(states)
        self.failed_states = sorted(failed_states)

    @property
    def wait(self) -> StateWait:
        """The wait for the states of the identifiers."""
        return StateWait(
            self.topic,
            parse_identifiers(self.identifiers),
            frozenset(self.states),
            frozenset(self.failed_states),
            self.poke_interval,
        )

    def event_payload(self, outcome: Mapping[str, str | None]) -> dict[str, Any]:
        """Return the event with the number of tasks by state, or with a message that names failed tasks."""
        if message := failed_states_message(self.topic, outcome, self.failed_states):
            return {"status": "failed", "message": message}
        return {"status": "ready", **count_states(self.topic, outcome.values())}


def count_states(topic: str, states: Iterable[str | None]) -> dict[str, Any]:
    """Return the result of the gate: the topic, and the number of tasks by state."""
    return {"topic": topic, "states": dict(sorted(Counter(map(str, states)).items()))}


def failed_states_message(topic: str, states: Mapping[str, str | None], failed_states: Collection[str]) -> str | None:
    """Return a message that names the first identifiers in a failed state; None if there are none."""
    failed = [f"{identifier!r} is {state}" for identifier, state in states.items() if state in failed_states]
    if not failed:
        return None
    more = f" and {len(failed) - _NAMED_IDENTIFIERS} more" if len(failed) > _NAMED_IDENTIFIERS else ""
    named = ", ".join(failed[:_NAMED_IDENTIFIERS])
    return f"{len(failed)} of {len(states)} tasks of topic {topic!r} are in a failed state: {named}{more}"
