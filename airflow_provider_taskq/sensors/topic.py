"""The gate that opens when a topic has tasks."""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_taskq.hooks.instrumented_queue import InstrumentedQueue
from airflow_provider_taskq.parameters import (
    logical_task_name,
    parse_duration,
    parse_int,
    parse_optional_duration,
)
from airflow_provider_taskq.queue import Condition, Order
from airflow_provider_taskq.queue.arguments import DurationLike
from airflow_provider_taskq.queue.waits import ReadyWait, check_wait
from airflow_provider_taskq.sensors.base import TaskQBaseSensor
from airflow_provider_taskq.triggers.topic import TaskQTrigger, claim_request, ready_wait

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.xcom_arg import XComArg


class TaskQSensor(TaskQBaseSensor):
    """Waits until a topic has tasks to poll, and may claim them for the following tasks of the DAG.

    Without `claim` the gate returns `{"topic", "ready"}`. With `claim=n` it claims up to n tasks and returns the claim,
    `{"topic", "owner", "fence", "claimed"}`: pass it on as `claim=gate.output`. By default the owner in the queue is
    this logical task, `dag_id/run_id/task_id/map_index`. So a retry takes over the tasks that an earlier try claimed,
    and claims no others. Two gates with the same `claim_as` take tasks over from each other, and log a warning.

    No heartbeat extends the lease between the gate and the task that continues the claim, so `lease` has to cover that
    time. A drain extends the lease while it runs. If the lease lapses and `expire()` runs, other consumers get the
    tasks. No task is lost.

    `max_wait` opens the gate for fewer than `min_tasks`: once the topic's oldest due task has waited this long, one
    ready task is enough. The oldest task is the oldest that is due and waits for no dependency, even if `condition`
    hands out others first. BaseSensorOperator has a parameter of the same name: the longest time between two pokes
    under `exponential_backoff`. The value applies there too, because a gate that checks less often would open late.

    The trigger of a deferred gate claims if the gate does. TaskQBaseSensor documents the modes and the parameters of
    every gate.

    :param topic: the topic's name (templated).
    :param min_tasks: the number of ready tasks that opens the gate (templated).
    :param claim: the most tasks to claim; None to claim none. If other consumers leave fewer tasks than would open the
        gate, it claims none and waits on, unless `claim` itself is less (templated).
    :param claim_as: the owner's name in the queue; None for this logical task (templated).
    :param order: the order in which tasks are claimed.
    :param condition: the condition under which tasks are counted and claimed.
    :param lease: how long the claim lasts without a heartbeat: a timedelta, seconds, or text such as `5m` (templated).
    :param max_wait: a timedelta, seconds or text (see above); None for no limit (templated).
    """

    template_fields: Sequence[str] = ("topic", "min_tasks", "claim", "claim_as", "lease", "max_wait", "taskq_conn_id")
    trigger_type = TaskQTrigger
    ui_color = "#cfe2f3"

    def __init__(
        self,
        *,
        topic: str,
        min_tasks: "int | str | XComArg" = 1,
        claim: "int | str | XComArg | None" = None,
        claim_as: "str | XComArg | None" = None,
        order: Order | str = Order.FIRST_IN_FIRST_OUT,
        condition: Condition | str = Condition.NONE,
        lease: "DurationLike | XComArg" = timedelta(hours=1),
        max_wait: "DurationLike | XComArg | None" = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.min_tasks = min_tasks
        self.claim = claim
        self.claim_as = claim_as
        self.order = Order(order)
        self.condition = Condition(condition)
        self.lease = lease
        self.max_wait: Any = parse_duration("max_wait", max_wait) if isinstance(max_wait, int | float) else max_wait
        for name, value in (("min_tasks", min_tasks), ("claim", claim)):
            if isinstance(value, int):
                parse_int(name, value, 1)  # fail when the DAG is parsed
        self._start_in_triggerer()

    def execute(self, context: "Context") -> Any:
        """Wait in the chosen mode, and return the gate's result."""
        self.max_wait = parse_optional_duration("max_wait", self.max_wait)  # BaseSensorOperator needs a timedelta
        return super().execute(context)

    def check(self, context: "Context") -> dict[str, Any] | None:
        """Return the number of ready tasks, or with `claim` the claim, if the gate is open; else None."""
        if parse_int("claim", self.claim, 1) is not None:
            return self._claim(logical_task_name(context["ti"]))
        with self.hook.transaction() as queue:
            ready = check_wait(queue, self._wait(context))
        return None if ready is None else {"topic": self.topic, "ready": ready}

    def _wait(self, context: "Context") -> ReadyWait:  # noqa: ARG002  of the base class
        return ready_wait(self)

    def _claim(self, logical_task: str) -> dict[str, Any] | None:
        request = claim_request(self, str(self.claim_as or logical_task))
        with self.hook.get_conn() as connection:
            queue = InstrumentedQueue(connection)
            claimed = request.claim(queue)
        if claimed is None:
            return None
        self.hook.report(queue)  # of claimed tasks: a takeover has counted none
        claim, takeover = claimed
        if takeover is not None:
            self.log.log(*takeover.message(request, may_be_another_gate=claim.owner != logical_task))
        return claim.as_dict()
