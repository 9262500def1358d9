"""Base class of the gates: sensors that check the queue, in a worker or in the triggerer."""

from abc import abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any

from airflow.exceptions import AirflowRescheduleException  # common-compat lacks it
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseSensorOperator,
    PokeReturnValue,
    XComArg,
    conf,
)

from airflow_provider_taskq import hooks, metrics
from airflow_provider_taskq.links import TaskQTopicLink
from airflow_provider_taskq.operators.base import TaskQHookMixin
from airflow_provider_taskq.queue import UnknownTopic
from airflow_provider_taskq.queue.errors import first_line
from airflow_provider_taskq.queue.faults import classify
from airflow_provider_taskq.queue.waits import Wait, describe_wait, unknown_topic_error
from airflow_provider_taskq.triggers.wait_log import WaitLog

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_taskq.triggers.base import TaskQBaseTrigger

TRIGGER_INTERVAL = 1.0  # default seconds between two checks of the triggerer

# Airflow fails a task that is resumed before the scheduler has processed the end of the process that deferred it, or
# rescheduled it. The scheduler may learn of that end as late as the executor's supervisor sleeps. See
# docs/why/evidence/decisions.md.
RESUME_DELAY = max(10.0, 2 * conf.getfloat("workers", "min_heartbeat_interval", fallback=5))

_STATE_STORE_KEY = "taskq_wait_log"
_TEMPLATE_MARKS = ("{{", "{%", "{#")


class TaskQBaseSensor(TaskQHookMixin, BaseSensorOperator):
    """A sensor that checks the queue in mode poke, in mode reschedule, or deferred, with the same result.

    A subclass implements one check. Execution begins with a check in a worker, so that an open gate never defers. The
    trigger of a deferred gate ends the task and stores the result. If the gate has outlets or will not open, a worker
    resumes the task, checks again, and returns or raises the same as in the other modes. A gate that fails is resumed
    at least ten seconds after it deferred.

    `timeout` and `soft_fail` apply to all modes, as in BaseSensorOperator, but a deferred gate times out at least
    `RESUME_DELAY` seconds after it deferred. `exponential_backoff` and `max_wait` apply to the modes poke and
    reschedule only, because in the triggerer all gates share one query.

    :param deferrable: whether to wait in the triggerer.
    :param start_from_trigger: whether to start in the triggerer too, where the trigger makes the first check and the
        gate uses no worker. A gate with templates needs Airflow 3.3.
    :param poke_interval: seconds between two checks. The default is 60 in modes poke and reschedule, as in
        BaseSensorOperator, and 1 in the triggerer, where the waits share one query. In mode reschedule, `RESUME_DELAY`
        seconds is the shortest.
    :param taskq_conn_id: the Airflow connection (templated).
    """

    operator_extra_links = (TaskQTopicLink(),)
    topic: str
    trigger_type: "type[TaskQBaseTrigger]"  # its `wait_fields` are fields of the gate

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

    @abstractmethod
    def check(self, context: "Context") -> dict[str, Any] | None:
        """Return the gate's result if it is open, else None. Raises AirflowFailException if it can never open."""

    @abstractmethod
    def _wait(self, context: "Context") -> Wait[Any]:
        """Return the wait of this gate. Raises ValueError for invalid fields."""

    def _rendered_fields(self, context: "Context") -> dict[str, Any]:  # noqa: ARG002  for a subclass
        """Return the fields of the trigger that differ from those of the gate, once these are rendered."""
        return {}

    def poke(self, context: "Context") -> PokeReturnValue:
        """Check once, and log the status of the gate if it has changed.

        If an earlier check of the same try has reached the queue, a transient error is only logged.
        """
        wait_log = self._wait_log(context)
        try:
            result = self._check(context)
            if result is None:
                wait_log.log_status()
        except (AirflowFailException, AirflowSkipException):
            raise
        except Exception as error:
            if not wait_log.log_transient_error(error, silent=self.silent_fail):
                raise
            self.__dict__.pop("hook", None)  # the next hook reads the Airflow connection again
            result = None
        return PokeReturnValue(result is not None, result)

    def execute(self, context: "Context") -> Any:
        """Wait in the chosen mode, and return the gate's result."""
        if not self.deferrable:
            began = self._waiting_since(context)
            try:
                result = super().execute(context)
            except (AirflowSensorTimeout, AirflowSkipException) as error:
                if error.__cause__ is None:  # Airflow's own timeout; an error of a check has a cause
                    raise type(error)(self._timeout_message(context)) from error
                raise
            except AirflowRescheduleException as later:
                soonest = datetime.now(UTC) + timedelta(seconds=RESUME_DELAY)
                later.reschedule_date = max(later.reschedule_date, soonest)
                raise
            metrics.gate_opened(self.topic, began)
            return result
        deadline = datetime.now(UTC) + timedelta(seconds=self.timeout)
        found = self._check_or_skip(context)
        return self._defer(context, deadline) if found is None else self._report_open(found, deadline)

    def execute_complete(self, context: "Context", event: Any, deadline: str | None = None) -> Any:
        """Check again in a worker, after the trigger has seen the gate open or has failed."""
        # `dag.test()` also resumes a task that its trigger has ended, with a string as event and without a deadline.
        default = datetime.now(UTC) + timedelta(seconds=self.timeout)
        ends = datetime.fromisoformat(deadline) if deadline else default
        found = self._check_or_skip(context)
        if found is not None:
            return self._report_open(found, ends)
        if isinstance(event, dict) and event["status"] == "error":
            raise AirflowException(event["message"])
        return self._defer(context, ends)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: "Context") -> Any:
        """Resume the task. If the deferral timed out, the error also says what the gate waited for."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except (AirflowSensorTimeout, AirflowSkipException) as error:
            timed_out = isinstance(error, AirflowSensorTimeout) or isinstance(error.__cause__, AirflowSensorTimeout)
            if timed_out and next_method != self.execute_complete.__name__:
                raise type(error)(self._timeout_message(context)) from error.__cause__
            raise

    @property
    def _ends_in_trigger(self) -> bool:
        return not self.outlets  # Airflow emits the events of outlets from a worker only

    @property
    def _stores(self) -> str:
        """The XComs that the trigger stores: `nothing`, `result` or `each`."""
        if not self.do_xcom_push:
            return "nothing"
        return "each" if self.multiple_outputs else "result"

    def _wait_log(self, context: "Context") -> "SensorWaitLog":
        log: SensorWaitLog | None = self.__dict__.get("_cached_wait_log")
        if log is None:
            log = SensorWaitLog(lambda: self.hook, self._wait(context), self.log, context, stored=self.reschedule)
            self.__dict__["_cached_wait_log"] = log
        return log

    def _waiting_since(self, context: "Context") -> datetime:
        # In mode reschedule, another process may have made the first check.
        measured = self.reschedule and metrics.enabled()
        first_check = context["ti"].get_first_reschedule_date(context) if measured else None
        return first_check or datetime.now(UTC)

    def _trigger_fields(self) -> dict[str, Any]:
        fields = (*self.trigger_type.wait_fields, "taskq_conn_id")
        return {name: _serializable(getattr(self, name)) for name in fields if hasattr(self, name)}

    def _start_in_triggerer(self) -> None:
        """With `start_from_trigger`, let the scheduler create the trigger from the gate's unrendered fields.

        Airflow 3.3 renders them in the triggerer. With an older release, a gate with templates defers from a worker.
        """
        if not self.start_from_trigger:
            return
        from airflow.triggers.base import BaseTrigger, StartTriggerArgs

        values = self._trigger_fields()
        if any(map(_has_template, values.values())) and not hasattr(BaseTrigger, "render_template_fields"):
            self.start_from_trigger = False
            return
        own = {"poke_interval": self.trigger_interval, "ends_task": self._ends_in_trigger, "stores": self._stores}
        self.start_trigger_args = StartTriggerArgs(
            trigger_cls=f"{self.trigger_type.__module__}.{self.trigger_type.__qualname__}",
            next_method=self.execute_complete.__name__,
            trigger_kwargs={**values, **own},
            timeout=timedelta(seconds=self.timeout),
        )

    def _report_open(self, result: dict[str, Any], deadline: datetime) -> dict[str, Any]:
        self.log.info("Gate is open: result=%s", result)
        metrics.gate_opened(self.topic, deadline - timedelta(seconds=self.timeout))
        return result

    def _defer(self, context: "Context", deadline: datetime) -> Any:
        remaining = deadline - datetime.now(UTC)
        if remaining <= timedelta(0):
            message = self._timeout_message(context)
            raise AirflowSkipException(message) if self.soft_fail else AirflowSensorTimeout(message)
        self._wait_log(context).try_log_status()
        since = (deadline - timedelta(seconds=self.timeout)).isoformat()
        return self.defer(
            trigger=self.trigger_type(
                **{**self._trigger_fields(), **self._rendered_fields(context)},
                poke_interval=self.trigger_interval,
                ends_task=self._ends_in_trigger,
                stores=self._stores,
                resume_after=RESUME_DELAY,
                since=since if self._ends_in_trigger and metrics.enabled() else None,
            ),
            method_name=self.execute_complete.__name__,
            kwargs={"deadline": deadline.isoformat()},
            # At the timeout Airflow resumes the task, which must not happen earlier: see RESUME_DELAY.
            timeout=max(remaining, timedelta(seconds=RESUME_DELAY)),
        )

    def _timeout_message(self, context: "Context") -> str:
        return f"The gate was not open within {self.timeout:g} seconds. {self._wait_log(context).description()}"

    def _check(self, context: "Context") -> dict[str, Any] | None:
        try:
            return self.check(context)
        except UnknownTopic:
            raise unknown_topic_error(self.topic) from None

    def _check_or_skip(self, context: "Context") -> dict[str, Any] | None:
        """Check once. Errors are handled as BaseSensorOperator handles them in the other modes."""
        try:
            return self._check(context)
        except AirflowSkipException:
            raise
        except AirflowFailException as error:
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(_skip_message(soft=self.soft_fail)) from error
            raise
        except Exception as error:
            if self.silent_fail:
                self.log.exception("Check failed, the gate waits on")
                return None
            if self.never_fail:
                raise AirflowSkipException(_skip_message(soft=False)) from error
            raise


class SensorWaitLog:
    """Logs in a worker what one try of a gate waits for, and each change.

    :param stored: whether the task's state store (Airflow 3.3) keeps the last line. In mode reschedule each check has a
        process of its own, and the next process logs only changes.
    """

    def __init__(
        self,
        get_hook: "Callable[[], hooks.TaskQHook]",
        wait: Wait[Any],
        logger: Any,
        context: "Context",
        *,
        stored: bool,
    ) -> None:
        self._get_hook = get_hook
        self._wait = wait
        self._store: Any = context.get("task_state_store") if stored else None
        self._try_number = getattr(context["ti"], "try_number", None)
        self._log = WaitLog(logger)
        stored_state = self._store.get(_STATE_STORE_KEY) if self._store is not None else None
        self._stored_state: dict[str, Any] = stored_state if isinstance(stored_state, dict) else {}
        if self._stored_state.get("try_number") == self._try_number:
            self._log.restore(self._stored_state)

    def log_status(self) -> None:
        """Log what the gate waits for, if that has changed."""
        with self._get_hook().transaction() as queue:
            description = describe_wait(queue, self._wait)
        self._log.log_recovery()
        self._log.log_status(description)
        self._save()

    def try_log_status(self) -> None:
        """Log the status before a deferral. An error is only logged, because the trigger reports it too."""
        try:
            self.log_status()
        except Exception as error:  # noqa: BLE001  see above
            self._log.log_error(first_line(error))

    def log_transient_error(self, error: Exception, *, silent: bool) -> bool:
        """Log a transient error, and return True. Return False for an error that the caller has to raise.

        In a first check, no error is transient. In a `silent` gate (`silent_fail`), all errors are transient.
        """
        if not silent and not (self._log.state.get("description") and classify(error).is_temporary):
            return False
        self._log.log_error(first_line(error))
        self._save()
        return True

    def description(self) -> str:
        """Return a sentence that says what the gate waits for now, or why that is unknown."""
        try:
            with self._get_hook().transaction() as queue:
                return describe_wait(queue, self._wait)
        except Exception as error:  # noqa: BLE001  this is part of the message of another error
            return f"The last check failed: {first_line(error)}"

    def _save(self) -> None:
        state = {"try_number": self._try_number, **self._log.state}
        if self._store is not None and state != self._stored_state:
            self._store.set(_STATE_STORE_KEY, state)
            self._stored_state = state


def _serializable(value: Any) -> Any:
    """Convert a value for the serialized DAG. The output of another task becomes the template that pulls it."""
    if isinstance(value, XComArg):
        return str(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return sorted(map(_serializable, value))  # the same in each process
    if isinstance(value, list | tuple):
        return [_serializable(each) for each in value]
    return value


def _has_template(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_template, value))
    return isinstance(value, str) and any(mark in value for mark in _TEMPLATE_MARKS)


def _skip_message(*, soft: bool) -> str:
    # The message of BaseSensorOperator.
    return f"Skipping due to {'soft_fail' if soft else 'never_fail'} is set to True."
