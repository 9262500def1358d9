"""A gate that opens when a topic has tasks."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseSensorOperator,
    PokeReturnValue,
    conf,
)

from airflow_provider_taskq.operators.holding import AIRFLOWS_OWNER, given_owner, held_sequences, logical_task
from airflow_provider_taskq.queue import Condition, Order, TaskQueue

if TYPE_CHECKING:
    import psycopg
    from airflow.sdk import Context
    from airflow.sdk.definitions.mappedoperator import OperatorPartial

    from airflow_provider_taskq.hooks.taskq import TaskQHook
    from airflow_provider_taskq.triggers.topic import TaskQTrigger

# Airflow fails a task that is resumed before the scheduler has heard of the end of the process that deferred it,
# which takes as long as the executor's supervisor may sleep, and a moment. See docs/decisions.md.
_SETTLED = max(10.0, 2 * conf.getfloat("workers", "min_heartbeat_interval", fallback=5))


class TaskQSensor(BaseSensorOperator):
    """Waits until a topic has tasks to be polled, and may take them for what comes next.

    Without `claim` it looks only, and returns `{"topic", "ready"}`. With `claim=n` it takes up to n tasks under an
    owner and returns `{"topic", "owner", "claimed"}`. The owner is this logical task unless named, so a retry takes
    over what an earlier try had claimed and claims no more. An owner's name belongs to one worker at a time:
    whoever registers it, takes its tasks over.

    Nobody extends the lease between the gate and the task that goes on with the tasks (`drain` does while it runs):
    `lease` has to cover that time. When it has run out and the queue's `expire()` is called, the tasks are handed
    out again; nothing is lost.

    Modes poke, reschedule and deferrable do the same. A deferred gate that only looks is ended by its trigger;
    one that claims is resumed in a worker, some seconds after it deferred at the earliest. In both cases
    execution begins with a look, so that an open gate never defers.

    :param topic: the topic's name (templated).
    :param min_tasks: how many tasks open the gate.
    :param claim: how many to take at most; None to take none. Fewer than `min_tasks`, unless `claim` itself is
        less, are not taken: somebody else was quicker, and the gate waits on.
    :param owner: the owner's name in the queue (templated, in the field `task_owner`).
    :param order: which tasks are taken first.
    :param condition: which tasks can be taken.
    :param lease: how long the owner may be silent, a timedelta or seconds.
    :param deferrable: whether to wait in the triggerer.
    :param poll_interval: seconds between two looks of the triggerer.
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
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval: float = 1.0,
        taskq_conn_id: str = "taskq_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.min_tasks = min_tasks
        self.claim = claim
        self.task_owner = given_owner(owner, kwargs.get("default_args"))
        self.order = Order(order)
        self.condition = Condition(condition)
        self.lease = lease if isinstance(lease, timedelta) else timedelta(seconds=lease)
        self.deferrable = deferrable
        self.poll_interval = poll_interval
        self.taskq_conn_id = taskq_conn_id
        if min_tasks < 1 or (claim is not None and claim < 1):
            raise ValueError(f"min_tasks and claim are at least 1, not {min_tasks} and {claim}")

    @classmethod
    def partial(cls, **kwargs: Any) -> "OperatorPartial":
        """Begins a mapped gate. Airflow takes the default of our `owner` for that of its own, which is never None."""
        mapped: OperatorPartial = super().partial(**kwargs)
        if mapped.kwargs.get("owner") is None:
            mapped.kwargs["owner"] = AIRFLOWS_OWNER
        return mapped

    @cached_property
    def hook(self) -> "TaskQHook":
        """The hook; imported here, as what it builds on takes seconds that a DAG processor need not spend."""
        from airflow_provider_taskq.hooks.taskq import TaskQHook

        return TaskQHook(taskq_conn_id=self.taskq_conn_id)

    def poke(self, context: "Context") -> PokeReturnValue:
        """Looks, and takes if the gate is one that does."""
        found = self._peek() if self.claim is None else self._take(self.task_owner or logical_task(context))
        return PokeReturnValue(found is not None, found)

    def execute(self, context: "Context") -> Any:
        """Waits in the mode that was chosen."""
        if not self.deferrable:
            return super().execute(context)
        return self._open_or_defer(context, datetime.now(UTC) + timedelta(seconds=self.timeout))

    def execute_complete(self, context: "Context", event: dict[str, Any], deadline: str) -> Any:
        """Goes on in a worker after the trigger has seen enough tasks, or found that it never will."""
        if event["status"] != "ready":
            raise AirflowException(event["message"])
        return self._open_or_defer(context, datetime.fromisoformat(deadline))

    def _open_or_defer(self, context: "Context", deadline: datetime) -> Any:
        """What poke found; else defers for what is left of the time."""
        outcome = self._poke_or_skip(context)
        if outcome:
            self.log.info("The gate of topic %s is open: %s", self.topic, outcome.xcom_value)
            return outcome.xcom_value
        remaining = deadline - datetime.now(UTC)
        if remaining <= timedelta(0):
            raise AirflowSensorTimeout(f"Topic {self.topic} was not ready within {self.timeout} seconds.")
        trigger = self._trigger()
        if trigger.ends_task and self.do_xcom_push:
            # Known beforehand. Given to the trigger to return, Airflow 3.3 would store it as text instead of JSON.
            context["ti"].xcom_push("return_value", self._seen())
        return self.defer(
            trigger=trigger,
            method_name=self.execute_complete.__name__,
            kwargs={"deadline": deadline.isoformat()},
            timeout=remaining,
        )

    def _poke_or_skip(self, context: "Context") -> PokeReturnValue:
        """Pokes; with `never_fail`, an error skips the task, as in the other modes."""
        try:
            return self.poke(context)
        except Exception as error:
            if self.never_fail:
                raise AirflowSkipException("Skipping due to never_fail is set to True.") from error
            raise

    def _trigger(self) -> "TaskQTrigger":
        """The trigger that waits; it ends the task itself where nothing is left for a worker to do or to verify."""
        from airflow_provider_taskq.triggers.topic import TaskQTrigger

        ends_task = self.claim is None and not self.outlets
        return TaskQTrigger(
            topic=self.topic,
            min_tasks=self.min_tasks,
            condition=self.condition.value,
            taskq_conn_id=self.taskq_conn_id,
            poll_interval=self.poll_interval,
            ends_task=ends_task,
            first_look=0 if ends_task else _SETTLED,
        )

    def _peek(self) -> dict[str, Any] | None:
        """What the gate returns if enough tasks are ready."""
        with self.hook.transaction() as queue:
            ready = queue.ready(self.topic, self.min_tasks, self.condition)
        return self._seen() if ready >= self.min_tasks else None

    def _seen(self) -> dict[str, Any]:
        """What a gate that only looks returns: it counts no further than it has to."""
        return {"topic": self.topic, "ready": self.min_tasks}

    def _take(self, name: str) -> dict[str, Any] | None:
        """What the gate returns if it holds tasks now. A closed gate leaves nothing behind, not even a lease."""
        with self.hook.get_conn() as connection:
            claimed = self._claimed(connection, name)
            if not claimed:
                connection.rollback()
                return None
        return {"topic": self.topic, "owner": name, "claimed": claimed}

    def _claimed(self, connection: "psycopg.Connection[Any]", name: str) -> int:
        """How many tasks the name holds: those of an earlier try, else newly claimed ones."""
        queue = TaskQueue(connection)
        assert self.claim is not None  # noqa: S101  for the type checker; poke asks before it takes
        if queue.owner(name) is not None:
            owner = queue.register(name, self.lease)
            if owner.resumed and (held := held_sequences(connection, owner, self.topic)):
                return len(held)
        if queue.ready(self.topic, self.min_tasks, self.condition) < self.min_tasks:
            return 0
        owner = queue.register(name, self.lease)
        claimed = queue.claim(self.topic, owner, self.claim, self.order, self.condition)
        return claimed if claimed >= min(self.min_tasks, self.claim) else 0
