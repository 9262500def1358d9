"""A gate that opens when a topic has tasks."""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_taskq.operators.claims import logical_task
from airflow_provider_taskq.operators.rendered import Span, count, optional_span, span
from airflow_provider_taskq.queue import Condition, Order, UnknownTopic
from airflow_provider_taskq.sensors.base import TaskQGate

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.xcom_arg import XComArg

    from airflow_provider_taskq.triggers.claim_request import ClaimRequest
    from airflow_provider_taskq.triggers.topic import TaskQTrigger


class TaskQSensor(TaskQGate):
    """Waits until a topic has tasks to be polled, and may claim them for the tasks of the DAG that follow.

    Without `claim` it looks only, and returns `{"topic", "ready"}`. With `claim=n` it claims up to n tasks and returns
    the claim, `{"topic", "owner", "fence", "claimed"}`: pass it on as `claim=gate.output`. By default the owner in the
    queue is this logical task, `dag_id/run_id/task_id/map_index`, so a retry takes over what an earlier try claimed and
    claims no more. Two gates with the same `claim_as` take tasks over from each other; the second says so in its log.

    Nothing extends the lease between the gate and the task that continues the claim (`drain` does while it runs):
    `lease` has to cover that time. When it has run out and the queue's `expire()` is called, the tasks are handed
    out again; nothing is lost.

    Modes poke, reschedule and deferrable do the same. A deferred gate is ended by its trigger, which claims if the gate
    does. Execution begins with a look in a worker, so that an open gate never defers; with `start_from_trigger` the
    trigger takes that look, too, and no worker is used.

    `max_wait` opens the gate for fewer than `min_tasks`: once the topic's oldest due task has waited so long, one task
    that can be taken is enough. The age is that of the topic's oldest task that is due and waits for no dependency,
    also where `condition` lets others go first. BaseSensorOperator has a parameter of this name, the longest time
    between two pokes under `exponential_backoff`. It is that here as well, and on purpose: a gate that looked more
    rarely than that would open late. With `min_tasks=1` there is nothing else to it. A gate that is deferred needs no
    back-off: the waits of a triggerer share one query.

    `timeout` and `soft_fail` are as in BaseSensorOperator, in all modes: what is not open in time fails, or is skipped.

    :param topic: the topic's name (templated).
    :param min_tasks: how many tasks open the gate (templated).
    :param claim: how many to claim at most; None to claim none. Fewer than would open the gate, unless `claim` itself
        is less, are not claimed: another consumer was quicker, and the gate waits on (templated).
    :param claim_as: the owner's name in the queue; None for this logical task (templated).
    :param order: which tasks are claimed first.
    :param condition: which tasks can be claimed.
    :param lease: how long the claim lasts without a heartbeat: a timedelta, seconds or `5m` (templated).
    :param max_wait: how long the oldest task waits for others, likewise; None for ever (templated).
    :param deferrable: whether to wait in the triggerer.
    :param start_from_trigger: whether to begin in the triggerer, too (Airflow 3.3 for templates).
    :param poke_interval: seconds between two looks. Default: 60 in modes poke and reschedule, 1 in the triggerer.
    :param taskq_conn_id: the Airflow connection (templated).
    """

    template_fields: Sequence[str] = (
        "topic",
        "min_tasks",
        "claim",
        "claim_as",
        "lease",
        "max_wait",
        "taskq_conn_id",
    )
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
        lease: "Span | XComArg" = timedelta(hours=1),
        max_wait: "Span | XComArg | None" = None,
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
        self.max_wait: Any = span(max_wait) if isinstance(max_wait, int | float) else max_wait
        for name, value in (("min_tasks", min_tasks), ("claim", claim)):
            if isinstance(value, int):
                count(name, value)  # so that the DAG fails at import, not at run time
        self._start_in_triggerer(
            "airflow_provider_taskq.triggers.topic.TaskQTrigger",
            topic=topic,
            min_tasks=min_tasks,
            claim=claim,
            claim_as=claim_as,
            condition=self.condition.value,
            order=self.order.value,
            lease=lease,
            max_wait=max_wait,
        )

    def execute(self, context: "Context") -> Any:
        """Waits in the mode that was chosen."""
        self.max_wait = optional_span(self.max_wait)  # BaseSensorOperator reads it as the longest pause between pokes
        return super().execute(context)

    def look(self, context: "Context") -> dict[str, Any] | None:
        """Looks, and claims if the gate is one that does."""
        from airflow_provider_taskq.triggers.waits import unknown_topic

        try:
            return self._peek() if self._size is None else self._take(self._request(context, self._size), context)
        except UnknownTopic:
            raise unknown_topic(self.topic) from None

    def _trigger(self, context: "Context", **how: Any) -> "TaskQTrigger":  # noqa: ARG002  the same for all tasks
        from airflow_provider_taskq.triggers.topic import TaskQTrigger

        return TaskQTrigger(
            topic=self.topic,
            min_tasks=self._least,
            condition=self.condition.value,
            max_wait=self._longest_wait,
            claim=self._size,
            claim_as=str(self.claim_as) if self.claim_as else None,
            order=self.order.value,
            lease=span(self.lease).total_seconds(),
            **how,
        )

    @property
    def _least(self) -> int:
        """How many tasks open the gate."""
        least = count("min_tasks", self.min_tasks)
        return 1 if least is None else least

    @property
    def _size(self) -> int | None:
        """How many tasks to claim at most."""
        return count("claim", self.claim)

    @property
    def _longest_wait(self) -> float | None:
        """The seconds after which the oldest task waits for no others."""
        longest = optional_span(self.max_wait)
        return None if longest is None else longest.total_seconds()

    def _peek(self) -> dict[str, Any] | None:
        """What the gate returns if enough tasks are ready: the question that the trigger asks, too."""
        from airflow_provider_taskq.triggers.snapshot import outcome_now
        from airflow_provider_taskq.triggers.waits import ReadyWait

        wait = ReadyWait(self.topic, self._least, self.condition.value, self._longest_wait)
        with self.hook.transaction() as queue:
            ready = outcome_now(queue.conn, wait)
        return None if ready is None else self._seen(ready)

    def _seen(self, ready: int) -> dict[str, Any]:
        """What a gate that only looks returns."""
        return {"topic": self.topic, "ready": ready}

    def _request(self, context: "Context", size: int) -> "ClaimRequest":
        """What the gate claims."""
        from airflow_provider_taskq.triggers.claim_request import ClaimRequest

        return ClaimRequest(
            topic=self.topic,
            owner=str(self.claim_as) if self.claim_as else logical_task(context),
            size=size,
            min_tasks=self._least,
            order=self.order,
            condition=self.condition,
            max_wait=self._longest_wait,
            lease=span(self.lease),
        )

    def _take(self, request: "ClaimRequest", context: "Context") -> dict[str, Any] | None:
        """What the gate returns if it holds tasks now. A closed gate leaves nothing behind, not even a lease.

        Metrics and lineage are told of what it claimed, once that is committed; not of what it took over.
        """
        from airflow_provider_taskq.hooks.instrumented_queue import ObservedQueue

        with self.hook.get_conn() as connection:
            queue = ObservedQueue(connection)
            taken = request.take(queue)
            if taken is None:
                connection.rollback()
                return None
        queue.report(self.hook)
        claim, taken_over = taken
        if taken_over is not None:
            self.log.log(*taken_over.message(request, of_others=claim.owner != logical_task(context)))
        return claim.as_dict()
