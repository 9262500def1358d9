"""The operator that revives ended tasks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_taskq import metrics
from airflow_provider_taskq.operators.base import TaskQBaseOperator
from airflow_provider_taskq.parameters import enum_name, parse_enum, parse_int, parse_ints
from airflow_provider_taskq.queue import Revival, State
from airflow_provider_taskq.queue.metrics import REVIVED

if TYPE_CHECKING:
    from airflow.sdk import Context


class TaskQReviveOperator(TaskQBaseOperator):
    """Revives tasks that are EXPIRED, FAILED, SUSPENDED, FILTERED or SUCCEEDED, in one transaction.

    Choose the tasks by state, with an optional range and size, or by sequence. By sequence, the operator revives all of
    the tasks or none. A task that one try has revived is no longer ended. So a second try by state revives no task
    twice, and a second try by sequence fails.

    Returns `{"topic", "revival", "revived"}`; `revived` is the number of tasks.

    :param topic: the topic's name (templated).
    :param state: the state of the tasks: EXPIRED, FAILED, SUSPENDED, FILTERED or SUCCEEDED (templated).
    :param revival: RESET makes the tasks READY in their old place; APPEND, REPLACE and SUPERSEDE push copies with that
        insertion (templated).
    :param sequences: the sequences of the tasks, instead of a state (templated).
    :param from_: the lowest sequence (templated).
    :param to: the highest sequence (templated).
    :param size: revives at most this many tasks, those with the lowest sequences (templated).
    """

    template_fields: Sequence[str] = ("topic", "state", "revival", "sequences", "from_", "to", "size", "taskq_conn_id")

    def __init__(
        self,
        *,
        topic: str,
        state: State | str | None = None,
        revival: Revival | str = "RESET",
        sequences: Sequence[int] | str | None = None,
        from_: int | str = 0,
        to: int | str | None = None,
        size: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.state = enum_name(state)
        self.revival = enum_name(revival)
        self.sequences = sequences
        self.from_ = from_
        self.to = to
        self.size = size

    def execute(self, context: "Context") -> dict[str, Any]:  # noqa: ARG002  Airflow's signature
        """Revive the tasks, and return how many there were."""
        revival = parse_enum(Revival, self.revival) or Revival.RESET
        with self.hook.transaction() as queue:
            revived = queue.revive(
                self.topic,
                parse_enum(State, self.state),
                revival,
                sequences=parse_ints("sequences", self.sequences),
                from_=parse_int("from_", self.from_) or 0,
                to=parse_int("to", self.to),
                size=parse_int("size", self.size),
            )
        metrics.record(REVIVED, len(revived), topic=self.topic)
        self.log.info("Revived tasks: topic=%s revival=%s count=%d", self.topic, revival, len(revived))
        return {"topic": self.topic, "revival": revival.value, "revived": len(revived)}
