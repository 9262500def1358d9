"""Takes lapsed leases, from a DAG."""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_taskq import metrics
from airflow_provider_taskq.operators.base import TaskQOperator
from airflow_provider_taskq.operators.rendered import Span, span

if TYPE_CHECKING:
    from airflow.sdk import Context


class TaskQExpireOperator(TaskQOperator):
    """Takes every lapsed lease, in all topics; what was held goes out again or expires, as the topic's policy says.

    It never touches a lease that runs, may run anywhere at any time, and has to run somewhere: until it does, what a
    dead worker held stays held. Once a minute is usual.

    Returns `{"expired"}`, the number of tasks that were held.

    :param grace: how long a lease has to have lapsed, a timedelta or seconds (templated).
    :param taskq_conn_id: the Airflow connection (templated).
    """

    template_fields: Sequence[str] = ("grace", "taskq_conn_id")

    def __init__(self, *, grace: Span = timedelta(0), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.grace = grace

    def execute(self, context: "Context") -> dict[str, Any]:  # noqa: ARG002  Airflow's signature
        """Expires, and says how many."""
        with self.hook.transaction() as queue:
            expired = queue.expire(span(self.grace))
        metrics.count(metrics.EXPIRED, expired)
        self.log.info("Took lapsed leases, under which %d tasks were held.", expired)
        return {"expired": expired}
