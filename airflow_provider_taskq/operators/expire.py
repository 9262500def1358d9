"""The operator that expires lapsed leases."""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_taskq import metrics
from airflow_provider_taskq.operators.base import TaskQBaseOperator
from airflow_provider_taskq.queue.arguments import DurationLike
from airflow_provider_taskq.queue.metrics import EXPIRED

if TYPE_CHECKING:
    from airflow.sdk import Context


class TaskQExpireOperator(TaskQBaseOperator):
    """Expires every lapsed lease, in all topics. The topic's policy redelivers the tasks or makes them EXPIRED.

    The operator does not change a lease that has not lapsed, so it may run anywhere and at any time. Run it about once
    a minute: until an expiry runs, the tasks of a dead worker stay held.

    Returns `{"expired"}`, the number of tasks that these leases held.

    :param grace: how long ago a lease must have lapsed: a timedelta, seconds or text such as `5m` (templated).
    """

    template_fields: Sequence[str] = ("grace", "taskq_conn_id")

    def __init__(self, *, grace: DurationLike = timedelta(0), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.grace = grace

    def execute(self, context: "Context") -> dict[str, Any]:  # noqa: ARG002  Airflow's signature
        """Expire the leases, and return how many tasks they held."""
        with self.hook.transaction() as queue:
            expired = queue.expire(self.grace)
        metrics.record(EXPIRED, expired)
        self.log.info("Expired lapsed leases: tasks=%d", expired)
        return {"expired": expired}
