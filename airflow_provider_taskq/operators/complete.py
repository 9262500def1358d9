"""The operator that completes the tasks of a claim."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_taskq import metrics
from airflow_provider_taskq.operators.base import TaskQBaseOperator
from airflow_provider_taskq.parameters import parse_ints
from airflow_provider_taskq.queue import Decision, Json, LeaseLost, NotHeld, Owner, Result, TaskQueue
from airflow_provider_taskq.queue.claims import Claim, held_sequences
from airflow_provider_taskq.queue.metrics import COMPLETED, LEASE_LOST

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.xcom_arg import XComArg


class TaskQCompleteOperator(TaskQBaseOperator):
    """Completes the tasks that a gate claimed, in one transaction.

        gate = TaskQSensor(task_id="gate", topic="flights", claim=100)
        TaskQCompleteOperator(task_id="done", claim=gate.output)

    The operator completes the tasks that are still held under the fence of the claim. That includes tasks that another
    task of the DAG took over by the claim, such as a drain with `claim=gate.output`. A lapsed lease still completes,
    until an expiry ends it. A second run completes the tasks that are still held: none after a success.

    Raises LeaseLost if the lease was released or expired, or if a later claim under the same name took the tasks over.
    Raises NotHeld if one of the `sequences` is not held.

    Returns `{"topic", "owner", "result", "completed"}`; `completed` is the number of tasks.

    :param claim: the claim, `gate.output` or a template such as `"{{ ti.xcom_pull('gate') }}"` (templated).
    :param result: SUCCESS, FILTER, SUSPENSION or FAILURE, for all of the tasks (templated).
    :param sequences: completes only these tasks; None for all that are held (templated).
    :param message: the output of the tasks; with FAILURE also their error (templated).
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
        """Complete the tasks, and return how many there were."""
        decision = self._decision()
        claim = Claim.parse(self.claim)
        self.topic = claim.topic  # for the link to the topic's page
        try:
            with self.hook.get_conn() as connection:
                queue = TaskQueue(connection)
                owner = claim.holder(queue)
                held = held_sequences(connection, owner, claim.topic)
                sequences = held if self.sequences is None else self._chosen_sequences(queue, owner, held)
                queue.complete(owner, dict.fromkeys(sequences, decision))
        except LeaseLost:
            metrics.record(LEASE_LOST, 1, topic=claim.topic)
            raise
        metrics.record(COMPLETED, len(sequences), topic=claim.topic, result=decision.result.name)
        if sequences:
            self.hook.report_lineage(inputs=[claim.topic])
        self.log.info("Completed tasks: topic=%s owner=%s count=%d", claim.topic, owner.name, len(sequences))
        return {"topic": claim.topic, "owner": owner.name, "result": decision.result.name, "completed": len(sequences)}

    def _chosen_sequences(self, queue: TaskQueue, owner: Owner, held: Sequence[int]) -> list[int]:
        """Return the chosen sequences that are held. Raises NotHeld if one of them is not held in this topic."""
        chosen = set(parse_ints("sequences", self.sequences) or ())
        missing = []
        for sequence in sorted(chosen - set(held)):
            task = queue.task(self.topic, sequence)
            # If an earlier try completed this task and died before it could report, the task is not missing.
            if task is None or task.completed is None or task.owner != owner.name:
                missing.append(sequence)
        if missing:
            raise NotHeld(
                f"owner {owner.name!r} does not hold {len(missing)} of {len(chosen)} tasks in topic {self.topic!r}: "
                f"sequence {', '.join(map(str, missing[:10]))}{', ...' if len(missing) > 10 else ''}"
            )
        return sorted(chosen.intersection(held))

    def _decision(self) -> Decision:
        result = Result.of(self.result)
        failed = result is Result.FAILURE and self.message is not None
        return Decision(result, message=self.message, error=str(self.message) if failed else None)
