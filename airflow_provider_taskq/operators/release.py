"""The operator that releases the tasks of a claim."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_taskq.operators.base import TaskQBaseOperator
from airflow_provider_taskq.queue.claims import Claim

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.xcom_arg import XComArg


class TaskQReleaseOperator(TaskQBaseOperator):
    """Releases the tasks that a claim still holds, so that they do not wait until its lease expires.

    Use it as a teardown, which runs whether the tasks before it succeed or fail:

        gate = TaskQSensor(task_id="gate", topic="flights", claim=100)
        work(gate.output) >> TaskQReleaseOperator(task_id="release", claim=gate.output).as_teardown(setups=gate)

    The tasks become READY in their old place, and the attempt does not count. Completed tasks stay completed. The
    operator succeeds if the claim is gone, or if the gate made none. A task that took the claim over, such as a drain
    with `claim=gate.output`, loses its lease.

    Returns `{"topic", "owner", "released"}`; `released` is the number of tasks.

    :param claim: the claim, `gate.output` or a template such as `"{{ ti.xcom_pull('gate') }}"` (templated).
    """

    template_fields: Sequence[str] = ("claim", "taskq_conn_id")

    def __init__(self, *, claim: "Mapping[str, Any] | Claim | XComArg | str | None", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.claim = claim

    def execute(self, context: "Context") -> dict[str, Any]:  # noqa: ARG002  Airflow's signature
        """Release the tasks, and return how many there were."""
        if self.claim in (None, "", "None"):
            self.log.info("Released nothing: the gate made no claim")
            return {"topic": None, "owner": None, "released": 0}
        claim = Claim.parse(self.claim)
        self.topic = claim.topic  # for the link to the topic's page
        with self.hook.transaction() as queue:
            owner = queue.owner(claim.owner, claim.fence)
            released = 0 if owner is None else queue.release(owner)
        if owner is None:
            self.log.info("Released nothing: the claim is gone: topic=%s owner=%s", claim.topic, claim.owner)
        else:
            self.log.info("Released tasks: topic=%s owner=%s count=%d", claim.topic, claim.owner, released)
        return {"topic": claim.topic, "owner": claim.owner, "released": released}
