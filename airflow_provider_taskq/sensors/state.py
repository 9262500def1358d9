"""A gate that opens when tasks of the queue have come to a state."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException, XComArg

from airflow_provider_taskq.queue import State, UnknownTopic
from airflow_provider_taskq.sensors.base import TaskQGate
from airflow_provider_taskq.triggers.identifiers import identifiers_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_taskq.triggers.state import TaskQStateTrigger


class TaskQStateSensor(TaskQGate):
    """Waits until the newest task of every identifier is in one of some states.

    One that is in a failed state fails the gate at once, naming the identifiers, and without a retry: the next try
    would find the same. Revive or replace the tasks, and clear the gate. With `soft_fail` the gate is skipped instead.
    An identifier that has no task yet is waited for.

    Returns `{"topic", "states"}`: how many tasks are in which state.

    Modes poke, reschedule and deferrable do the same. A deferred gate is ended by its trigger. One that fails is
    resumed in a worker, some seconds after it deferred at the earliest.

    :param topic: the topic's name (templated).
    :param identifiers: a list of identifiers, or what another task returned (templated; text that is rendered to a
        list is read as one, other text is one identifier).
    :param states: the states that open the gate, by name or as members of `State`.
    :param failed_states: the states that fail it; one that also stands in `states` opens it.
    :param deferrable: whether to wait in the triggerer.
    :param start_from_trigger: whether to begin in the triggerer, too (Airflow 3.3 for templates).
    :param poke_interval: seconds between two looks. Default: 60 in modes poke and reschedule, 1 in the triggerer.
    :param taskq_conn_id: the Airflow connection (templated).
    """

    template_fields: Sequence[str] = ("topic", "identifiers", "taskq_conn_id")
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
            raise ValueError("a gate without states would never open")
        self._start_in_triggerer(
            "airflow_provider_taskq.triggers.state.TaskQStateTrigger",
            topic=topic,
            identifiers=identifiers,
            states=sorted(self.states),
            failed_states=sorted(self.failed_states),
        )

    def look(self, context: "Context") -> dict[str, Any] | None:  # noqa: ARG002  the same for all tasks
        """The states counted, if all are among those waited for."""
        from airflow_provider_taskq.triggers.snapshot import outcome_now
        from airflow_provider_taskq.triggers.state import seen, stays_closed
        from airflow_provider_taskq.triggers.waits import StateWait, unknown_topic

        wait = StateWait(self.topic, identifiers_of(self.identifiers), self.states, self.failed_states)
        try:
            with self.hook.transaction() as queue:
                found = outcome_now(queue.conn, wait)
        except UnknownTopic:
            raise unknown_topic(self.topic) from None
        if found is None:
            return None
        if message := stays_closed(self.topic, found, self.failed_states):
            raise AirflowFailException(message)
        return seen(self.topic, found.values())

    def _trigger(self, context: "Context", **how: Any) -> "TaskQStateTrigger":  # noqa: ARG002  the same for all tasks
        from airflow_provider_taskq.triggers.state import TaskQStateTrigger

        return TaskQStateTrigger(
            topic=self.topic,
            identifiers=list(identifiers_of(self.identifiers)),
            states=sorted(self.states),
            failed_states=sorted(self.failed_states),
            **how,
        )


def state_names(given: Iterable[State | str] | State | str) -> frozenset[str]:
    """The names of states, given in any case or as members; InvalidArgument, a ValueError, for an unknown one."""
    return frozenset(State.of(state).name for state in ([given] if isinstance(given, State | str) else given))
