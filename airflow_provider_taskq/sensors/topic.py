"""A gate that opens when a topic has tasks."""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_taskq.operators.holding import AIRFLOWS_OWNER, given_owner, held_sequences, logical_task
from airflow_provider_taskq.queue import Condition, Order, TaskQueue, UnknownTopic
from airflow_provider_taskq.sensors.gate import TaskQGate

if TYPE_CHECKING:
    import psycopg
    from airflow.sdk import Context
    from airflow.sdk.definitions.mappedoperator import OperatorPartial

    from airflow_provider_taskq.queue import Owner
    from airflow_provider_taskq.triggers.topic import TaskQTrigger


class TaskQSensor(TaskQGate):
    """Waits until a topic has tasks to be polled, and may take them for what comes next.

    Without `claim` it looks only, and returns `{"topic", "ready"}`. With `claim=n` it takes up to n tasks under an
    owner and returns `{"topic", "owner", "claimed"}`; the XCom `fence` has the fence of that claim. The owner is this
    logical task unless named, so a retry takes over what an earlier try had claimed and claims no more. An owner's
    name belongs to one worker at a time: whoever registers it, takes its tasks over.

    Nobody extends the lease between the gate and the task that goes on with the tasks (`drain` does while it runs):
    `lease` has to cover that time. When it has run out and the queue's `expire()` is called, the tasks are handed
    out again; nothing is lost.

    Modes poke, reschedule and deferrable do the same. A deferred gate that only looks is ended by its trigger; one
    that claims, or whose result is not known beforehand (`max_wait` with more than one of `min_tasks`), is resumed in
    a worker, some seconds after it deferred at the earliest. In both cases execution begins with a look, so that an
    open gate never defers.

    `max_wait` opens the gate for fewer than `min_tasks`: once the topic's oldest due task has waited so long, one task
    that can be taken is enough. The age is that of the topic's oldest task that is due and waits for no dependency,
    also where `condition` lets others go first. BaseSensorOperator has a parameter of this name, the longest time
    between two pokes under `exponential_backoff`. It is that here as well, and on purpose: a gate that looked more
    rarely than that would open late. With `min_tasks=1` there is nothing else to it. A gate that is deferred needs no
    back-off: the waits of a triggerer share one query.

    `timeout` and `soft_fail` are as in BaseSensorOperator, in all modes: what is not open in time fails, or is skipped.

    :param topic: the topic's name (templated).
    :param min_tasks: how many tasks open the gate.
    :param claim: how many to take at most; None to take none. Fewer than would open the gate, unless `claim` itself
        is less, are not taken: somebody else was quicker, and the gate waits on.
    :param owner: the owner's name in the queue (templated, in the field `task_owner`).
    :param order: which tasks are taken first.
    :param condition: which tasks can be taken.
    :param lease: how long the owner may be silent, a timedelta or seconds.
    :param max_wait: how long the oldest task waits for others, a timedelta or seconds; None for ever.
    :param deferrable: whether to wait in the triggerer.
    :param poll_interval: seconds between two looks of the triggerer, at the shortest.
    :param taskq_conn_id: the Airflow connection (templated).
    """

    template_fields: Sequence[str] = ("topic", "task_owner", "taskq_conn_id")
    ui_color = "#cfe2f3"

    def __init__(
        self,
        *,
        topic: str,
        min_tasks: int = 1,
        claim: int | None = None,
        owner: str | None = None,
        order: Order | str = Order.FIRST_IN_FIRST_OUT,
        condition: Condition | str = Condition.NONE,
        lease: timedelta | float = timedelta(hours=1),
        max_wait: timedelta | float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(max_wait=max_wait, **kwargs)
        self.topic = topic
        self.min_tasks = min_tasks
        self.claim = claim
        self.task_owner = given_owner(owner, kwargs.get("default_args"))
        self.order = Order(order)
        self.condition = Condition(condition)
        self.lease = lease if isinstance(lease, timedelta) else timedelta(seconds=lease)
        if min_tasks < 1 or (claim is not None and claim < 1):
            raise ValueError(f"min_tasks and claim are at least 1, not {min_tasks} and {claim}")

    @classmethod
    def partial(cls, **kwargs: Any) -> "OperatorPartial":
        """Begins a mapped gate. Airflow takes the default of our `owner` for that of its own, which is never None."""
        mapped: OperatorPartial = super().partial(**kwargs)
        if mapped.kwargs.get("owner") is None:
            mapped.kwargs["owner"] = AIRFLOWS_OWNER
        return mapped

    def look(self, context: "Context") -> dict[str, Any] | None:
        """Looks, and takes if the gate is one that does."""
        try:
            return self._peek() if self.claim is None else self._take(context)
        except UnknownTopic:
            raise UnknownTopic(f"topic {self.topic!r} is not known; create it with create_topic") from None

    @property
    def _ends_in_trigger(self) -> bool:
        """Whether the trigger can end the task; it takes nothing."""
        return self.claim is None and super()._ends_in_trigger

    def _known_result(self) -> dict[str, Any] | None:
        """What the gate will return: it counts no further than it has to."""
        if self.claim is not None or (self._longest_wait is not None and self.min_tasks > 1):
            return None
        return self._seen(self.min_tasks)

    def _trigger(self, context: "Context", **how: Any) -> "TaskQTrigger":  # noqa: ARG002  the same for all tasks
        from airflow_provider_taskq.triggers.topic import TaskQTrigger

        return TaskQTrigger(
            topic=self.topic,
            min_tasks=self.min_tasks,
            condition=self.condition.value,
            max_wait=self._longest_wait,
            **how,
        )

    @property
    def _longest_wait(self) -> float | None:
        """The seconds after which the oldest task waits for no others; BaseSensorOperator keeps a timedelta."""
        return None if self.max_wait is None else self.max_wait.total_seconds()

    def _peek(self) -> dict[str, Any] | None:
        """What the gate returns if enough tasks are ready."""
        with self.hook.transaction() as queue:
            ready = self._ready(queue.conn)
        return None if ready is None else self._seen(ready)

    def _ready(self, connection: "psycopg.Connection[Any]") -> int | None:
        """How many tasks are ready, if that opens the gate: the question that the trigger asks, too."""
        from airflow_provider_taskq.triggers.look import outcome_now
        from airflow_provider_taskq.triggers.waits import ReadyWait

        return outcome_now(connection, ReadyWait(self.topic, self.min_tasks, self.condition.value, self._longest_wait))

    def _seen(self, ready: int) -> dict[str, Any]:
        """What a gate that only looks returns."""
        return {"topic": self.topic, "ready": ready}

    def _take(self, context: "Context") -> dict[str, Any] | None:
        """What the gate returns if it holds tasks now. A closed gate leaves nothing behind, not even a lease.

        Metrics and lineage are told of what it took, once that is committed; not of what an earlier try had taken.
        """
        from airflow_provider_taskq.hooks.lineage import ObservedQueue

        with self.hook.get_conn() as connection:
            queue = ObservedQueue(connection)
            claim = self._claimed(queue, self.task_owner or logical_task(context))
            if claim is None:
                connection.rollback()
                return None
        queue.report(self.hook)
        owner, claimed = claim
        if self.do_xcom_push:
            context["ti"].xcom_push("fence", owner.fence)
        return {"topic": self.topic, "owner": owner.name, "claimed": claimed}

    def _claimed(self, queue: TaskQueue, name: str) -> "tuple[Owner, int] | None":
        """Who holds how many tasks under the name: those of an earlier try, else newly claimed ones."""
        assert self.claim is not None  # noqa: S101  for the type checker; poke asks before it takes
        if queue.owner(name) is not None:
            owner = queue.register(name, self.lease)
            if owner.resumed and (held := held_sequences(queue.conn, owner, self.topic)):
                return owner, len(held)
        ready = self._ready(queue.conn)
        if ready is None:
            return None
        owner = queue.register(name, self.lease)
        claimed = queue.claim(self.topic, owner, self.claim, self.order, self.condition)
        enough = min(self.min_tasks, self.claim) if ready >= self.min_tasks else 1
        return (owner, claimed) if claimed >= enough else None
