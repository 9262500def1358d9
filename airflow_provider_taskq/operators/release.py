"""Releases, from a DAG, the tasks that a claim still holds."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_taskq.operators.base import TaskQOperator
from airflow_provider_taskq.operators.claims import Claim
from airflow_provider_taskq.queue import TaskQueue

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.xcom_arg import XComArg


class TaskQReleaseOperator(TaskQOperator):
    """Gives back the tasks that a claim still holds, so that they do not wait until its lease expires.

    Made for a teardown, which runs whether the tasks before it succeed or fail:

        gate = TaskQSensor(task_id="gate", topic="flights", claim=100)
        work(gate.output) >> TaskQReleaseOperator(task_id="release", claim=gate.output).as_teardown(setups=gate)

    The tasks become READY in their old place, and the attempt is not counted. Completed tasks stay completed. If the
    claim is gone already, or the gate made none, there is nothing to do, and the task succeeds. A task that took the
    claim over, such as a drain with `claim=gate.output`, loses its lease, too.

    Returns `{"topic", "owner", "released"}`; `released` is the number of tasks.

    :param claim: the claim, `gate.output` or a template such as `"{{ ti.xcom_pull('gate') }}"` (templated).
    :param taskq_conn_id: the Airflow connection (templated).
    """

    template_fields: Sequence[str] = ("claim", "taskq_conn_id")

    def __init__(self, *, claim: "Mapping[str, Any] | Claim | XComArg | str | None", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.claim = claim

    def execute(self, context: "Context") -> dict[str, Any]:  # noqa: ARG002  Airflow's signature
        """Releases, and says how many."""
        if self.claim in (None, "", "None"):
            self.log.info("There is no claim to release.")
            return {"topic": None, "owner": None, "released": 0}
        claim = Claim.parse(self.claim)
        self.topic = claim.topic  # for the link to the topic's page
        with self.hook.transaction() as queue:
            released = _release(queue, claim)
        if released is None:
            self.log.info("The claim of %s in topic %s is gone; nothing to release.", claim.owner, claim.topic)
        else:
            self.log.info("Released %d tasks of %s in topic %s.", released, claim.owner, claim.topic)
        return {"topic": claim.topic, "owner": claim.owner, "released": released or 0}


def _release(queue: TaskQueue, claim: Claim) -> int | None:
    """How many tasks were given back; None if the claim holds none any more."""
    owner = queue.owner(claim.owner, claim.fence)
    return None if owner is None else queue.release(owner)
