"""Completes, from a DAG, the tasks of a claim."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_taskq import metrics
from airflow_provider_taskq.operators.base import TaskQOperator
from airflow_provider_taskq.operators.claims import Claim, held_sequences
from airflow_provider_taskq.operators.rendered import numbers
from airflow_provider_taskq.queue import Decision, Json, LeaseLost, NotHeld, Owner, Result, TaskQueue

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.xcom_arg import XComArg


class TaskQCompleteOperator(TaskQOperator):
    """Completes the tasks that a gate claimed, all in one transaction.

        gate = TaskQSensor(task_id="gate", topic="flights", claim=100)
        TaskQCompleteOperator(task_id="done", claim=gate.output)

    It completes what the claim still holds, and only under the fence of the claim, or of a task that took the claim
    over by it, such as a drain with `claim=gate.output`. A lease that has lapsed still completes. LeaseLost if the
    claim is gone: its lease was released or expired, or a later claim under the same name took the tasks over. A second
    run completes what is held by then, which after a success is nothing.

    Returns `{"topic", "owner", "result", "completed"}`; `completed` is the number of tasks.

    :param claim: the claim, `gate.output` or a template such as `"{{ ti.xcom_pull('gate') }}"` (templated).
    :param result: SUCCESS, FILTER, SUSPENSION or FAILURE, for all of them (templated).
    :param sequences: the tasks to complete, if not all that are held (templated).
    :param message: their output; with FAILURE, their error too (templated).
    :param taskq_conn_id: the Airflow connection (templated).
    """

    template_fields: Sequence[str] = ("claim", "result", "sequences", "message", "taskq_conn_id")

    def __init__(
        self,
        *,
        claim: "Mapping[str, Any] | Claim | XComArg | str",
        result: Result | str = "SUCCESS",
        sequences: Sequence[int] | str | None = None,
        message: Json = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.claim = claim
        self.result = result.name if isinstance(result, Result) else result
        self.sequences = sequences
        self.message = message

    def execute(self, context: "Context") -> dict[str, Any]:  # noqa: ARG002  Airflow's signature
        """Completes, and says how many."""
        decision = self._decision()
        claim = Claim.parse(self.claim)
        self.topic = claim.topic  # for the link to the topic's page
        try:
            with self.hook.get_conn() as connection:
                queue = TaskQueue(connection)
                owner = claim.holder(queue)
                held = held_sequences(connection, owner, claim.topic)
                sequences = held if self.sequences is None else self._wanted(queue, owner, held)
                queue.complete(owner, dict.fromkeys(sequences, decision))
        except LeaseLost:
            metrics.count(metrics.LEASE_LOST, 1, topic=claim.topic)
            raise
        metrics.count(metrics.COMPLETED, len(sequences), topic=claim.topic, result=decision.result.name)
        if sequences:
            self.hook.report_lineage(inputs=[claim.topic])
        self.log.info("Completed %d tasks of %s in topic %s.", len(sequences), owner.name, claim.topic)
        return {"topic": claim.topic, "owner": owner.name, "result": decision.result.name, "completed": len(sequences)}

    def _wanted(self, queue: TaskQueue, owner: Owner, held: Sequence[int]) -> list[int]:
        """The sequences asked for, a rendered template's text too; NotHeld if one is not held in this topic.

        Those that this owner has ended already are passed over: an earlier try did it, and did not live to report.
        """
        wanted = set(numbers(self.sequences) or ())
        missing = sorted(sequence for sequence in wanted - set(held) if not self._ended(queue, owner, sequence))
        if missing:
            raise NotHeld(
                f"owner {owner.name!r} does not hold {len(missing)} of {len(wanted)} tasks in topic {self.topic!r}: "
                f"sequence {', '.join(map(str, missing[:10]))}{', ...' if len(missing) > 10 else ''}"
            )
        return sorted(wanted.intersection(held))

    def _ended(self, queue: TaskQueue, owner: Owner, sequence: int) -> bool:
        """Whether a task was ended by this owner."""
        task = queue.task(self.topic, sequence)
        return task is not None and task.completed is not None and task.owner == owner.name

    def _decision(self) -> Decision:
        """The decision for each of the tasks."""
        result = Result.of(self.result)
        failed = result is Result.FAILURE and self.message is not None
        return Decision(result, message=self.message, error=str(self.message) if failed else None)
