"""Waits in the triggerer until tasks have come to a state."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from airflow_provider_taskq.triggers.base import GateTrigger
from airflow_provider_taskq.triggers.identifiers import identifiers_of
from airflow_provider_taskq.triggers.waits import StateWait

_NAMED = 10  # of identifiers in a message


class TaskQStateTrigger(GateTrigger):
    """Fires once, when the newest tasks of all identifiers are in one of `states`, or any in one of `failed_states`.

    Its event tells `{"status": "ready", "topic", "states"}`, counted by state, or a `message` with the status
    `failed`, or `error` where it cannot wait.

    :param topic: the topic's name.
    :param identifiers: the identifiers, or the text of a list of them, as templates render it.
    :param states: names of the states that are waited for.
    :param failed_states: names of the states that end the wait.
    """

    def __init__(
        self,
        *,
        topic: str,
        identifiers: Iterable[str] | str,
        states: Iterable[str] = ("SUCCEEDED",),
        failed_states: Iterable[str] = ("FAILED",),
        **how: Any,
    ) -> None:
        super().__init__(**how)
        self.topic = topic
        self.identifiers = identifiers if isinstance(identifiers, str) else list(identifiers)
        self.states = sorted(states)
        self.failed_states = sorted(failed_states)

    @property
    def subject(self) -> dict[str, Any]:
        """Topic, identifiers and states."""
        return {
            "topic": self.topic,
            "identifiers": self.identifiers,
            "states": self.states,
            "failed_states": self.failed_states,
        }

    @property
    def wait(self) -> StateWait:
        """The same for the watcher."""
        return StateWait(
            self.topic,
            identifiers_of(self.identifiers),
            frozenset(self.states),
            frozenset(self.failed_states),
            self.poke_interval,
        )

    def facts(self, outcome: Mapping[str, str | None]) -> dict[str, Any]:
        """The states counted, or which of them are failed ones."""
        if message := stays_closed(self.topic, outcome, self.failed_states):
            return {"status": "failed", "message": message}
        return {"status": "ready", **seen(self.topic, outcome.values())}


def seen(topic: str, states: Iterable[str | None]) -> dict[str, Any]:
    """What a gate returns: how many tasks are in which state."""
    return {"topic": topic, "states": dict(sorted(Counter(map(str, states)).items()))}


def stays_closed(topic: str, states: Mapping[str, str | None], failed_states: Collection[str]) -> str | None:
    """The sentence about tasks that are in a failed state, the first few by name; None where there is none."""
    failed = [f"{identifier!r} is {state}" for identifier, state in states.items() if state in failed_states]
    if not failed:
        return None
    more = f" and {len(failed) - _NAMED} more are in such a state" if len(failed) > _NAMED else ""
    return f"Of {len(states)} tasks of topic {topic!r}, {', '.join(failed[:_NAMED])}{more}: the gate stays closed."
