"""What gates share: one look before anything, and how they wait in the triggerer."""

from abc import abstractmethod
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseSensorOperator,
    PokeReturnValue,
    conf,
)

from airflow_provider_taskq import metrics
from airflow_provider_taskq.links import TaskQTopicLink
from airflow_provider_taskq.sensors.gate_log import GateLog
from airflow_provider_taskq.sensors.start import trigger_args

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_taskq.hooks.taskq import TaskQHook
    from airflow_provider_taskq.triggers.base import GateTrigger

TRIGGER_INTERVAL = 1.0  # seconds between two looks of the triggerer, unless the gate says otherwise

# Airflow fails a task that is resumed before the scheduler has heard of the end of the process that deferred it,
# which takes as long as the executor's supervisor may sleep, and a moment. See docs/decisions.md.
SETTLED = max(10.0, 2 * conf.getfloat("workers", "min_heartbeat_interval", fallback=5))


class TaskQGate(BaseSensorOperator):
    """A sensor that looks at the queue, and whose modes poke, reschedule and deferrable do the same.

    A subclass says what one look finds. Execution begins with a look, so that an open gate never defers. A deferred
    gate is ended by its trigger, which stores the result. A gate with outlets, or one that will not open, is resumed in
    a worker, which looks again and so returns or raises what the other modes do.

    `poke_interval` is the time between two looks, in the triggerer too. Its default is 60 seconds in modes poke and
    reschedule, as in BaseSensorOperator, and 1 second in the triggerer, where the waits share one query.

    `exponential_backoff` and `max_wait` are about the modes poke and reschedule: the waits of a triggerer share one
    query however many they are, so there is nothing to be spared by looking less often for one of them.
    """

    operator_extra_links = (TaskQTopicLink(),)
    topic: str

    def __init__(
        self,
        *,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        start_from_trigger: bool = False,
        poke_interval: timedelta | float | None = None,
        taskq_conn_id: str = "taskq_default",
        multiple_outputs: bool = True,
        **kwargs: Any,
    ) -> None:
        if poke_interval is not None:
            kwargs["poke_interval"] = poke_interval
        super().__init__(multiple_outputs=multiple_outputs, **kwargs)
        self.deferrable = deferrable
        self.trigger_interval: float = TRIGGER_INTERVAL if poke_interval is None else self.poke_interval
        self.taskq_conn_id = taskq_conn_id
        self.start_from_trigger = start_from_trigger
        if start_from_trigger and not deferrable:
            raise ValueError("start_from_trigger needs deferrable=True")

    @cached_property
    def hook(self) -> "TaskQHook":
        """The hook; imported here, as what it builds on takes seconds that a DAG processor need not spend."""
        from airflow_provider_taskq.hooks.taskq import TaskQHook

        return TaskQHook(taskq_conn_id=self.taskq_conn_id)

    @abstractmethod
    def look(self, context: "Context") -> dict[str, Any] | None:
        """What the gate returns if it is open, else None; AirflowFailException where waiting on would be in vain."""

    @abstractmethod
    def _trigger(self, context: "Context", **how: Any) -> "GateTrigger":
        """The trigger that waits for the same; `how` has the arguments that all of them take."""

    def poke(self, context: "Context") -> PokeReturnValue:
        """Looks once, and logs what is waited for if that has changed.

        A queue that could be reached by an earlier look of the same try, and now cannot, is waited for as well.
        """
        gate_log = self._gate_log(context)
        try:
            found = self.look(context)
            if found is None:
                gate_log.log_status()
        except (AirflowFailException, AirflowSkipException):
            raise
        except Exception as error:
            if not gate_log.log_loss(error, silent=self.silent_fail):
                raise
            self.__dict__.pop("hook", None)  # the next one reads the Airflow connection again: its password may change
            found = None
        return PokeReturnValue(found is not None, found)

    def _gate_log(self, context: "Context") -> GateLog:
        """What this try logs of its wait: one for all looks of this process."""
        kept: GateLog | None = self.__dict__.get("_kept_log")
        if kept is None:
            wait = self._trigger(context, taskq_conn_id=self.taskq_conn_id).wait
            kept = self.__dict__["_kept_log"] = GateLog(
                lambda: self.hook, wait, self.log, context, stored=self.reschedule
            )
        return kept

    def execute(self, context: "Context") -> Any:
        """Waits in the mode that was chosen."""
        if not self.deferrable:
            began = self._began(context)
            try:
                result = super().execute(context)
            except (AirflowSensorTimeout, AirflowSkipException) as error:
                if error.__cause__ is None:  # Airflow's own timeout, not what a look has raised
                    raise type(error)(self._timeout_message(context)) from error
                raise
            metrics.gate_opened(self.topic, began)
            return result
        deadline = datetime.now(UTC) + timedelta(seconds=self.timeout)
        found = self._look_or_skip(context)
        return self._defer(context, deadline) if found is None else self._opened(found, deadline)

    def execute_complete(self, context: "Context", event: Any, deadline: str | None = None) -> Any:
        """Looks again, in a worker, after the trigger has seen the gate open, or found that it will not be.

        `dag.test()` resumes a task that its trigger has ended, too: with a text, and without the deferral's deadline.
        """
        whole = datetime.now(UTC) + timedelta(seconds=self.timeout)
        ends = datetime.fromisoformat(deadline) if deadline else whole
        found = self._look_or_skip(context)
        if found is not None:
            return self._opened(found, ends)
        if isinstance(event, dict) and event["status"] == "error":
            raise AirflowException(event["message"])
        return self._defer(context, ends)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: "Context") -> Any:
        """Resumes; where Airflow ended the deferral at its timeout, the error says what was waited for."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except (AirflowSensorTimeout, AirflowSkipException) as error:
            timed_out = isinstance(error, AirflowSensorTimeout) or isinstance(error.__cause__, AirflowSensorTimeout)
            if timed_out and next_method != self.execute_complete.__name__:  # by Airflow, which says just that
                raise type(error)(self._timeout_message(context)) from error.__cause__
            raise

    @property
    def _ends_in_trigger(self) -> bool:
        """Whether the trigger can end the task: Airflow reports outlets from a worker only."""
        return not self.outlets

    @property
    def _stores(self) -> str:
        """Which XComs the trigger stores: `nothing`, the `result`, or `each` of its values too."""
        if not self.do_xcom_push:
            return "nothing"
        return "each" if self.multiple_outputs else "result"

    def _began(self, context: "Context") -> datetime:
        """When this try began to look: in mode reschedule, that may have been another process."""
        asked = self.reschedule and metrics.enabled()
        return (asked and context["ti"].get_first_reschedule_date(context)) or datetime.now(UTC)

    def _start_in_triggerer(self, trigger: str, **subject: Any) -> None:
        """Lets the scheduler create the trigger, if the gate is to start from it.

        `subject`: what the gate waits for, before templates are rendered; Airflow renders it in the triggerer, from 3.3
        on. Where that is not possible, the gate defers from a worker.
        """
        if not self.start_from_trigger:
            return
        given = {**subject, "taskq_conn_id": self.taskq_conn_id}
        started = trigger_args(
            trigger,
            given,
            {"poke_interval": self.trigger_interval, "ends_task": self._ends_in_trigger, "stores": self._stores},
            timedelta(seconds=self.timeout),
        )
        if started is None:
            self.start_from_trigger = False
        else:
            self.start_trigger_args = started

    def _opened(self, found: dict[str, Any], deadline: datetime) -> dict[str, Any]:
        self.log.info("The gate is open: %s", found)
        metrics.gate_opened(self.topic, deadline - timedelta(seconds=self.timeout))
        return found

    def _defer(self, context: "Context", deadline: datetime) -> Any:
        """Waits in the triggerer for what is left of the time."""
        remaining = deadline - datetime.now(UTC)
        if remaining <= timedelta(0):
            message = self._timeout_message(context)
            raise AirflowSkipException(message) if self.soft_fail else AirflowSensorTimeout(message)
        self._gate_log(context).log_status_if_possible()
        since = (deadline - timedelta(seconds=self.timeout)).isoformat()
        return self.defer(
            trigger=self._trigger(
                context,
                taskq_conn_id=self.taskq_conn_id,
                poke_interval=self.trigger_interval,
                ends_task=self._ends_in_trigger,
                stores=self._stores,
                resume_after=SETTLED,
                since=since if self._ends_in_trigger and metrics.enabled() else None,
            ),
            method_name=self.execute_complete.__name__,
            kwargs={"deadline": deadline.isoformat()},
            timeout=remaining,
        )

    def _timeout_message(self, context: "Context") -> str:
        """That the time is over, and what was waited for, as the log says it."""
        return f"The gate was not open within {self.timeout:g} seconds. {self._gate_log(context).sentence()}"

    def _look_or_skip(self, context: "Context") -> dict[str, Any] | None:
        """Looks; what goes wrong is treated as in the other modes, where BaseSensorOperator does that."""
        try:
            return self.look(context)
        except AirflowSkipException:
            raise
        except AirflowFailException as error:
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(_skipping(soft=self.soft_fail)) from error
            raise
        except Exception as error:
            if self.silent_fail:
                self.log.exception("The look failed; the gate waits on.")
                return None
            if self.never_fail:
                raise AirflowSkipException(_skipping(soft=False)) from error
            raise


def _skipping(*, soft: bool) -> str:
    """What Airflow's own modes say."""
    return f"Skipping due to {'soft_fail' if soft else 'never_fail'} is set to True."
