"""The operator that drains a topic through a Python function."""

import inspect
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_provider_taskq import metrics
from airflow_provider_taskq.operators.base import TaskQBaseOperator
from airflow_provider_taskq.parameters import (
    logical_task_name,
    parse_duration,
    parse_int,
    parse_optional_duration,
)
from airflow_provider_taskq.queue import (
    Condition,
    Decision,
    FailureLimit,
    InvalidArgument,
    MaxFailed,
    Order,
    Result,
    Task,
    TooManyUndecided,
)
from airflow_provider_taskq.queue.arguments import DurationLike
from airflow_provider_taskq.queue.drains import parse_max_undecided
from airflow_provider_taskq.queue.encoding import JsonDefault
from airflow_provider_taskq.queue.errors import error_summary
from airflow_provider_taskq.worker import WorkerListener

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.xcom_arg import XComArg

    from airflow_provider_taskq.queue import DrainCounts, TaskQueue
    from airflow_provider_taskq.worker import Worker
    from airflow_provider_taskq.worker.batches import Exceptions
    from airflow_provider_taskq.worker.handlers import WorkHandler


PROGRESS_SECONDS = 30.0
LOGGED_FAILURES = 10


class TaskQProcessOperator(TaskQBaseOperator):
    """Polls a topic and calls a function for each task, until no task can be polled.

    The first parameter of the function gets the queue's task, the parameter `batch` the batch (see
    `airflow_provider_taskq.worker`), the next ones `op_args`, and others by name `op_kwargs` and values of Airflow's
    context. A parameter without a default that gets none of these is refused. The function returns a Decision, a
    Result or its name, None for SUCCESS, or `worker.UNDECIDED`. Any other value fails the task at once. An exception is
    a FAILURE of that task, which the topic's policy may retry; it does not fail the Airflow task. Instead of a
    function, `python_callable` may be a Composite, or a handler from `each` or `batch`.

    The worker holds tasks under the logical task's name and extends its lease while the function runs. A retry first
    releases the tasks that an earlier try still holds, so that it can poll them. They have had a crash: the retry polls
    them in smaller batches, until a task that kills its process is alone, and is FAILED.

    Returns `{"topic", "handled", "succeeded", "filtered", "suspended", "failed", "undecided"}`: the numbers of
    committed results, and of tasks for which the function returned UNDECIDED. A task that the topic's policy retries
    counts once per attempt.

    With `max_failed` the Airflow task fails if more tasks fail for good, after the commit of all results. Airflow does
    not retry it: a retry would find these tasks ended and succeed. After a clear, old failures do not count. The
    Airflow task also fails if more than `max_undecided` tasks are undecided. These are READY again for the retry.

    :param topic: the topic's name (templated).
    :param python_callable: the function, or a handler of batches.
    :param op_args: positional arguments for the function, after the task (templated).
    :param op_kwargs: keyword arguments for the function (templated).
    :param size: the most tasks in a batch; a batch is one transaction (templated).
    :param workers: the number of batches that run at the same time, in threads (templated).
    :param order: the order in which tasks are polled.
    :param condition: the condition under which tasks are polled.
    :param lease: how long other workers wait for the tasks if this process dies: a timedelta, seconds or text such as
        `5m` (templated).
    :param limit: a batch that takes longer fails: a timedelta, seconds or text; None for no limit (templated).
    :param max_failed: how many tasks may fail for good: a count such as 0 or 10 (int), or a share of the tasks that
        ended such as 0.05 (float) or "5%"; None, the default, is no limit (templated).
    :param max_undecided: how many tasks may be undecided: a count, or None for no limit (templated).
    :param success_on: exception classes that mean SUCCESS of a task, one or a tuple, such as
        `psycopg.errors.UniqueViolation` after a write that an earlier attempt made. For a handler of batches, pass them
        to `each` or `batch` instead.
    :param json_default: converts an object in the message of a decision that JSON does not have, such as a datetime,
        as that of `json.dumps`; for example `str`.
    """

    template_fields: Sequence[str] = (
        *("topic", "op_args", "op_kwargs", "size", "workers", "lease", "limit", "max_failed"),
        *("max_undecided", "taskq_conn_id"),
    )
    template_fields_renderers = {"op_args": "py", "op_kwargs": "py"}  # noqa: RUF012  as Airflow declares it
    shallow_copy_attrs: Sequence[str] = ("python_callable",)

    def __init__(
        self,
        *,
        topic: str,
        python_callable: "Callable[..., Any] | WorkHandler",
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        size: "int | str | XComArg" = 10,
        workers: "int | str | XComArg" = 1,
        order: Order | str = Order.FIRST_IN_FIRST_OUT,
        condition: Condition | str = Condition.NONE,
        lease: "DurationLike | XComArg" = timedelta(minutes=1),
        limit: "DurationLike | XComArg | None" = None,
        max_failed: "MaxFailed | XComArg" = None,
        max_undecided: "int | str | XComArg | None" = 0,
        success_on: "Exceptions" = (),
        json_default: JsonDefault | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.python_callable = python_callable
        self.op_args = op_args or ()
        self.op_kwargs = op_kwargs or {}
        self.size = size
        self.workers = workers
        self.order = Order(order)
        self.condition = Condition(condition)
        self.lease = lease
        self.limit = limit
        self.max_failed = max_failed
        self.max_undecided = max_undecided
        self.success_on = _exception_classes(success_on)
        self.json_default = json_default
        self._worker: Worker | None = None
        self._killed = False
        if not callable(python_callable) and not hasattr(python_callable, "handle"):
            raise TypeError("invalid python_callable: expected a function of a task, or a handler of batches")
        if self.success_on and hasattr(python_callable, "handle"):
            raise TypeError("success_on needs a function: for a handler, pass success_on to each() or batch()")
        if (
            not hasattr(python_callable, "handle")
            and isinstance(self.op_args, list | tuple)
            and isinstance(self.op_kwargs, Mapping)
        ):
            from airflow.sdk import Context

            # Refuses the function when the DAG is parsed.
            bind_arguments(python_callable, self.op_args, self.op_kwargs, dict.fromkeys(Context.__annotations__))

    def execute(self, context: "Context") -> dict[str, Any]:
        """Drain the topic, and return the numbers of committed results."""
        from airflow_provider_taskq.worker import Worker

        name = logical_task_name(context["ti"])
        handler = self._handler(context)
        failure_limit = FailureLimit.of(cast("MaxFailed", self.max_failed))
        max_undecided = parse_max_undecided(cast("int | str | None", self.max_undecided))
        with self.hook.transaction() as queue:
            began = queue.begin_drain(name, self.topic)
            _release_earlier_tries(queue, self.topic, name)
        self._worker = worker = Worker(
            self.hook.get_conn,
            self.topic,
            handler,
            size=parse_int("size", self.size, 1) or 1,
            workers=parse_int("workers", self.workers, 1) or 1,
            order=self.order,
            condition=self.condition,
            lease=parse_duration("lease", self.lease),
            limit=parse_optional_duration("limit", self.limit),
            listener=DrainListener(self.topic, self.log),
            name=name,
        )
        worker.record_to(metrics.record)
        statistics = worker.drain(max_undecided=None)
        if self._killed:
            raise AirflowException(f"the drain of {self.topic!r} was killed, and released the tasks without a decision")
        if statistics.handled:
            self.hook.report_lineage(inputs=[self.topic])
        fields = ("handled", "succeeded", "filtered", "suspended", "failed", "undecided")
        report: dict[str, Any] = {"topic": self.topic, **{field: getattr(statistics, field) for field in fields}}
        with self.hook.transaction() as queue:
            counts = queue.drain_counts(self.topic, name, began)
            queue.end_drain(name, report)
        self._log_report(report, counts)
        if failure_limit is not None and (failure := failure_limit.exceeded(self.topic, counts)):
            raise AirflowFailException(str(failure))
        if undecided := TooManyUndecided.check(self.topic, statistics.undecided, max_undecided):
            raise AirflowException(str(undecided))
        return report

    def _log_report(self, report: Mapping[str, Any], counts: "DrainCounts") -> None:
        """Log the numbers, as a warning if an attempt failed, even if the topic's policy retries the task."""
        failed = report["failed"]
        for_good = min(counts.failed, failed)  # the count includes failures of a try that was killed
        self.log.log(
            logging.WARNING if failed or report["undecided"] else logging.INFO,
            "Drained topic: %s failed_for_good=%d to_retry=%d",
            *(" ".join(f"{name}={value}" for name, value in report.items()), for_good, failed - for_good),
        )

    def on_kill(self) -> None:
        """Stop the worker, which releases the tasks without a decision."""
        self._killed = True  # Airflow 3 lets execute() continue after on_kill
        if self._worker is not None:
            self._worker.stop(timedelta(0))

    def _handler(self, context: "Context | Mapping[str, Any]") -> "WorkHandler":
        from airflow_provider_taskq.worker import each
        from airflow_provider_taskq.worker.handlers import WorkHandler

        function = self.python_callable
        if isinstance(function, WorkHandler):
            return function
        call = bind_arguments(function, self.op_args, self.op_kwargs, context)
        return each(call, success_on=self.success_on)


class DrainListener(WorkerListener):
    """Logs the progress and the first failures of a drain."""

    def __init__(self, topic: str, log: Any) -> None:  # an operator's log, whose type is private to Airflow
        self._topic = topic
        self._log = log
        self._logged_at = time.monotonic()
        self._handled = 0
        self._failures = 0

    def on_complete(self, trace: Any, decisions: Mapping[Task, Decision]) -> None:  # noqa: ARG002  the hook's signature
        """Log the progress now and then, and the first failures."""
        from airflow_provider_taskq.worker.handlers import is_undecided

        decisions = {task: decision for task, decision in decisions.items() if not is_undecided(decision)}
        now = time.monotonic()
        self._handled += len(decisions)  # without a lock: a concurrent update may be lost, and only the log shows it
        if now - self._logged_at >= PROGRESS_SECONDS:
            self._logged_at = now
            self._log.info("Drain in progress: topic=%s handled=%d", self._topic, self._handled)
        for task, decision in decisions.items():
            if decision.result is Result.FAILURE:
                self._log_failure(task, decision)

    def _log_failure(self, task: Task, decision: Decision) -> None:
        self._failures += 1
        if self._failures <= LOGGED_FAILURES:
            error = error_summary(decision.error) or "no error was given"
            self._log.warning("Task failed: identifier=%s sequence=%d error=%s", task.identifier, task.sequence, error)


def _exception_classes(value: Any) -> tuple[type[BaseException], ...]:
    """Return exception classes as a tuple. Raises TypeError, when the DAG is parsed, for anything else."""
    kinds = tuple(value) if isinstance(value, tuple | list) else (value,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise TypeError(f"invalid success_on {kind!r}: expected an exception class or a tuple of them")
    return kinds


def own_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function without the first one, which gets the task, and `batch`."""
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except ValueError:  # a function of C without a signature
        return []
    return [each for each in parameters[1:] if each.name != "batch"]


def bind_arguments(
    function: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any], context: Mapping[str, Any]
) -> Callable[..., Any]:
    """Return the function with these arguments, as a handler of a task.

    Raises InvalidArgument if an argument has no parameter, or a parameter without a default has no argument.
    """
    from airflow_provider_taskq.worker.handlers import HandlerFunction

    own = own_parameters(function)
    positional = [each.name for each in own if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if len(args) > len(positional):
        raise InvalidArgument(f"op_args has {len(args)} values, but the function has parameters for {len(positional)}")
    given = {**dict(zip(positional, args, strict=False)), **kwargs}
    named = {each.name for each in own}
    if any(each.kind is each.VAR_KEYWORD for each in own):
        function = partial(function, **{name: value for name, value in given.items() if name not in named})
    elif unknown := sorted(set(given) - named):
        raise InvalidArgument(f"op_kwargs has {unknown[0]!r}, but the function has no such parameter")
    names = HandlerFunction.of(function, "TaskQProcessOperator", ("batch", *given, *context)).names
    return partial(function, **{name: given.get(name, context.get(name)) for name in names if name != "batch"})


def _release_earlier_tries(queue: "TaskQueue", topic: str, name: str) -> None:
    """Release the tasks of earlier tries, whose processes have died. A try that still runs loses its lease."""
    for owner in queue.owners():
        if owner.name.startswith(f"{name}/"):
            queue.release(owner, crashed=True)
    queue.expire(topic=topic)  # earlier tries whose lease has lapsed are not in owners()
