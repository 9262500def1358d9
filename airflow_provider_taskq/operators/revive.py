"""Starts ended tasks anew, from a DAG."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_taskq import metrics
from airflow_provider_taskq.operators.base import TaskQOperator
from airflow_provider_taskq.operators.rendered import choice, name, number, numbers
from airflow_provider_taskq.queue import Revival, State

if TYPE_CHECKING:
    from airflow.sdk import Context


class TaskQReviveOperator(TaskQOperator):
    """Starts tasks anew that are EXPIRED, FAILED, SUSPENDED, FILTERED or SUCCEEDED, all in one transaction.

    Either those of a state, with a range and a size if wanted, or those of the sequences given, all of them or none.
    A second try finds those of the first no longer ended: by state it revives no task twice, by sequence it fails.

    Returns `{"topic", "revival", "revived"}`, the last being the number of tasks.

    :param topic: the topic's name (templated).
    :param state: which tasks: EXPIRED, FAILED, SUSPENDED, FILTERED or SUCCEEDED (templated).
    :param revival: RESET makes the tasks themselves READY, in their old place; APPEND, REPLACE and SUPERSEDE push
        copies by that insertion (templated).
    :param sequences: which tasks, one by one, instead of a state (templated).
    :param from_: the lowest sequence (templated).
    :param to: the highest sequence (templated).
    :param size: at most so many, those of the lowest sequences (templated).
    :param taskq_conn_id: the Airflow connection (templated).
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
        self.state = name(state)
        self.revival = name(revival)
        self.sequences = sequences
        self.from_ = from_
        self.to = to
        self.size = size

    def execute(self, context: "Context") -> dict[str, Any]:  # noqa: ARG002  Airflow's signature
        """Revives, and says how many."""
        revival = choice(Revival, self.revival) or Revival.RESET
        with self.hook.transaction() as queue:
            revived = queue.revive(
                self.topic,
                choice(State, self.state),
                revival,
                sequences=numbers(self.sequences),
                from_=number(self.from_) or 0,
                to=number(self.to),
                size=number(self.size),
            )
        metrics.count(metrics.REVIVED, len(revived), topic=self.topic)
        self.log.info("Revived %d tasks of topic %s by %s.", len(revived), self.topic, revival)
        return {"topic": self.topic, "revival": revival.value, "revived": len(revived)}
