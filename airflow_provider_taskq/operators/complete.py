"""Completes, from a DAG, what an owner holds."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_taskq import metrics
from airflow_provider_taskq.operators.base import TaskQOperator
from airflow_provider_taskq.operators.holding import given_owner, held_sequences
from airflow_provider_taskq.queue import Decision, Json, LeaseLost, NotHeld, Owner, Result, TaskQueue

if TYPE_CHECKING:
    from airflow.sdk import Context


class TaskQCompleteOperator(TaskQOperator):
    """Completes the tasks of a topic that an owner holds, all in one transaction.

    The owner is whoever claimed them. After a gate that claims, take it from the gate's result:

        gate = TaskQSensor(task_id="gate", topic="flights", claim=100)
        TaskQCompleteOperator(task_id="done", topic="flights", owner=gate.output["owner"])

    or, in a template, `owner="{{ ti.xcom_pull('gate')['owner'] }}"`. A lease that has lapsed still completes; one that
    is gone raises LeaseLost, as then the tasks are somebody else's. Running it again completes what is held
    by then, which after a success is nothing.

    A drain, or any other consumer that registers, takes the tasks over under a new fence. With `gate_fence` the tasks
    are completed only if somebody has: NotHeld while the claim is still as the gate left it. That is for a gate before
    a `durable` task: cleared after its end, Airflow 3.3 finds the old driver finished and starts no other, and what the
    gate has claimed anew was not worked on.

    Returns `{"topic", "owner", "result", "completed"}`, the last being the number of tasks.

    :param topic: the topic's name (templated).
    :param owner: the owner's name in the queue (templated, in the field `task_owner`).
    :param result: SUCCESS, FILTER, SUSPENSION or FAILURE, for all of them (templated).
    :param sequences: the tasks to complete, if not all that are held (templated).
    :param message: their output; with FAILURE, their error too (templated).
    :param gate_fence: the fence of the gate's claim, `"{{ ti.xcom_pull('gate', key='fence') }}"` (templated).
    :param taskq_conn_id: the Airflow connection (templated).
    """

    template_fields: Sequence[str] = (
        "topic",
        "task_owner",
        "result",
        "sequences",
        "message",
        "gate_fence",
        "taskq_conn_id",
    )

    def __init__(
        self,
        *,
        topic: str,
        owner: str,
        result: Result | str = "SUCCESS",
        sequences: Sequence[int] | str | None = None,
        message: Json = None,
        gate_fence: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.task_owner = given_owner(owner, kwargs.get("default_args"))
        self.result = result.name if isinstance(result, Result) else result
        self.sequences = sequences
        self.message = message
        self.gate_fence = gate_fence
        if not self.task_owner:
            raise ValueError("owner is missing: name whoever claimed the tasks, such as gate.output['owner']")

    def execute(self, context: "Context") -> dict[str, Any]:  # noqa: ARG002  Airflow's signature
        """Completes, and says how many."""
        decision = self._decision()
        with self.hook.get_conn() as connection:
            queue = TaskQueue(connection)
            owner = queue.owner(str(self.task_owner))
            if owner is None:
                metrics.count(metrics.LEASE_LOST, 1, topic=self.topic)
                raise LeaseLost(
                    f"owner {self.task_owner!r} has no lease: it was never registered, was released, or expired, "
                    "and what it had not completed was given back"
                )
            held = held_sequences(connection, owner, self.topic)
            self._refuse_untouched(owner, len(held))
            sequences = held if self.sequences is None else self._wanted(queue, owner, held)
            queue.complete(owner, dict.fromkeys(sequences, decision))
        metrics.count(metrics.COMPLETED, len(sequences), topic=self.topic, result=decision.result.name)
        if sequences:
            self.hook.report_lineage(inputs=[self.topic])
        self.log.info("Completed %d tasks of %s in topic %s.", len(sequences), owner.name, self.topic)
        return {"topic": self.topic, "owner": owner.name, "result": self.result, "completed": len(sequences)}

    def _refuse_untouched(self, owner: Owner, held: int) -> None:
        """NotHeld where nobody has taken the tasks over since the gate claimed them."""
        if self.gate_fence is not None and held and owner.fence == int(self.gate_fence):
            raise NotHeld(
                f"nobody has worked on the {held} tasks that {owner.name!r} holds in topic {self.topic!r}: they are "
                "still as the gate claimed them. Clear the task between the two, so that it starts anew"
            )

    def _wanted(self, queue: TaskQueue, owner: Owner, held: Sequence[int]) -> list[int]:
        """The sequences asked for, a rendered template's text too; NotHeld where one is not held in this topic.

        Those that this owner has ended already are passed over: an earlier try did it, and did not live to report.
        """
        asked: Any = json.loads(self.sequences) if isinstance(self.sequences, str) else self.sequences
        wanted = {int(sequence) for sequence in asked}
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
        try:
            result = Result[self.result]
        except KeyError:
            names = ", ".join(known.name for known in Result)
            raise ValueError(f"result {self.result!r} is not one of {names}") from None
        failed = result is Result.FAILURE and self.message is not None
        return Decision(result, message=self.message, error=str(self.message) if failed else None)
