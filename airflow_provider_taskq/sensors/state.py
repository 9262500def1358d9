"""The gate that opens when tasks reach a state."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException, XComArg

from airflow_provider_taskq.parameters import parse_identifiers
from airflow_provider_taskq.queue import State
from airflow_provider_taskq.queue.waits import StateWait, check_wait
from airflow_provider_taskq.sensors.base import TaskQBaseSensor
from airflow_provider_taskq.triggers.state import TaskQStateTrigger, count_states, failed_states_message

if TYPE_CHECKING:
    from airflow.sdk import Context


class TaskQStateSensor(TaskQBaseSensor):
    """Waits until the newest task of every identifier is in one of `states`.

    If a task is in a failed state, the gate fails immediately, with a message that names the identifiers. Airflow does
    not retry it, because a retry would find the same states. Revive or replace the tasks, and clear the gate. With
    `soft_fail` the gate is skipped instead. The gate also waits for identifiers that have no task yet.

    Returns `{"topic", "states"}`; `states` has the number of tasks by state. TaskQBaseSensor documents the modes and
    the parameters of every gate.

    :param topic: the topic's name (templated).
    :param identifiers: a list of identifiers, the output of another task, or the rendered text of such a list. Other
        text is one identifier (templated).
    :param states: the states that open the gate, as names or members of `State`.
    :param failed_states: the states that fail the gate, unless they are in `states` too.
    """

    template_fields: Sequence[str] = ("topic", "identifiers", "taskq_conn_id")
    trigger_type = TaskQStateTrigger
    ui_color = "#cfe2f3"

    def __init__(
        self,
        *,
        topic: str,
        identifiers: Iterable[str] | str | XComArg,
        states: Iterable[State | str] | State | str = frozenset({"SUCCEEDED"}),
        failed_states: Iterable[State | str] | State | str = frozenset({"FAILED"}),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.identifiers = identifiers
        self.states = state_names(states)
        self.failed_states = state_names(failed_states) - self.states
        if not self.states:
            raise ValueError("invalid states: a gate without states would never open")
        self._start_in_triggerer()

    def check(self, context: "Context") -> dict[str, Any] | None:
        """Return the number of tasks by state if the gate is open, else None.

        Raises AirflowFailException if a task is in a failed state.
        """
        with self.hook.transaction() as queue:
            states = check_wait(queue, self._wait(context))
        if states is None:
            return None
        if message := failed_states_message(self.topic, states, self.failed_states):
            raise AirflowFailException(message)
        return count_states(self.topic, states.values())

    def _wait(self, context: "Context") -> StateWait:  # noqa: ARG002  of the base class
        identifiers = parse_identifiers(self.identifiers)
        return StateWait(self.topic, identifiers, self.states, self.failed_states, self.poke_interval)

    def _rendered_fields(self, context: "Context") -> dict[str, Any]:  # noqa: ARG002  of the base class
        return {"identifiers": list(parse_identifiers(self.identifiers))}


def state_names(states: Iterable[State | str] | State | str) -> frozenset[str]:
    """Return the names of states that are members, or names in any case. Raises InvalidArgument for an unknown one."""
    return frozenset(State.of(state).name for state in ([states] if isinstance(states, State | str) else states))
