"""Drains a topic through a function, in a task of a DAG."""

import inspect
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_provider_taskq.operators.base import TaskQOperator
from airflow_provider_taskq.operators.claims import logical_task
from airflow_provider_taskq.operators.rendered import Span, count, optional_span, span
from airflow_provider_taskq.queue import Condition, FailureLimit, MaxFailed, Order

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.xcom_arg import XComArg

    from airflow_provider_taskq.queue import DrainCounts, TaskQueue
    from airflow_provider_taskq.worker import Worker
    from airflow_provider_taskq.worker.batches import Exceptions
    from airflow_provider_taskq.worker.handlers import WorkHandler
    from airflow_provider_taskq.worker.statistics import WorkerStatistics


class TaskQProcessOperator(TaskQOperator):
    """Polls a topic and calls a function for each of its tasks, until none is left that can be polled.

    The function gets the queue's task, then, if its second parameter is called `batch`, the batch (see
    `airflow_provider_taskq.worker`), then `op_args` and `op_kwargs`, and what it names of Airflow's context. It
    returns a Decision, a Result or None, which is SUCCESS; what it raises is a FAILURE of that task, which the topic's
    policy may retry, and not of this one. A Composite, or what `each` and `batch` make, is taken as it is.

    Tasks are held under the logical task's name and a lease that is kept while the function runs. A retry gives back at
    once what an earlier try still holds, so it finds those tasks again.

    Returns `{"topic", "handled", "succeeded", "filtered", "suspended", "failed"}`: how many results were committed. A
    task that the topic's policy retries counts once for each attempt.

    With `max_failed` the Airflow task fails if more tasks fail for good, after the commit of all results. It fails
    without a retry, which would find these tasks ended and succeed. Once it is cleared, old failures do not count.

    :param topic: the topic's name (templated).
    :param python_callable: the function, or a handler of batches.
    :param op_args: more arguments for the function, after the task (templated).
    :param op_kwargs: arguments by name (templated).
    :param size: tasks in a batch, which is one transaction (templated).
    :param workers: batches at a time, in threads (templated).
    :param order: which tasks are taken first.
    :param condition: which tasks can be taken.
    :param lease: how long tasks are kept from others if this process dies: a timedelta, seconds or `5m` (templated).
    :param limit: how long a batch may take before it is FAILED, likewise; None for ever (templated).
    :param max_failed: how many tasks may fail for good: a count such as 0 or 10 (int), or a share of the tasks that
        ended such as 0.05 (float) or "5%"; None, the default, is no limit (templated).
    :param success_on: exception classes that mean SUCCESS of a task, one or a tuple, such as
        `psycopg.errors.UniqueViolation` of a write that an earlier attempt has done. Not templated. TypeError together
        with a handler of batches: pass it to `each` or `batch` there.
    :param taskq_conn_id: the Airflow connection (templated).
    """

    template_fields: Sequence[str] = (
        *("topic", "op_args", "op_kwargs", "size", "workers", "lease", "limit", "max_failed", "taskq_conn_id"),
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
        lease: "Span | XComArg" = timedelta(minutes=1),
        limit: "Span | XComArg | None" = None,
        max_failed: "MaxFailed | XComArg" = None,
        success_on: "Exceptions" = (),
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
        self.success_on = _exceptions(success_on)
        self._worker: Worker | None = None
        self._killed = False
        if not callable(python_callable) and not hasattr(python_callable, "handle"):
            raise TypeError("python_callable is a function of a task, or a handler of batches")
        if self.success_on and hasattr(python_callable, "handle"):
            raise TypeError(
                "success_on needs a function; pass success_on to each() or batch() for a handler of batches"
            )

    def execute(self, context: "Context") -> dict[str, Any]:
        """Works until the topic has nothing more, and says what came of it."""
        from airflow_provider_taskq.operators.drain_listener import DrainListener
        from airflow_provider_taskq.worker import Worker

        name, max_failed = logical_task(context), cast("MaxFailed", self.max_failed)
        failure_limit = FailureLimit.of(max_failed)
        with self.hook.transaction() as queue:
            began = queue.begin_drain(name, self.topic)
            _take_back(queue, name)
        self._worker = worker = Worker(
            self.hook.get_conn,
            self.topic,
            self._handler(context),
            size=count("size", self.size) or 1,
            workers=count("workers", self.workers) or 1,
            order=self.order,
            condition=self.condition,
            lease=span(self.lease),
            limit=optional_span(self.limit),
            listener=DrainListener(self.topic, self.log),
            name=name,
        )
        try:
            done = worker.drain()
        finally:
            worker.stop(timedelta(0))  # where Airflow has interrupted it
        if self._killed:
            raise AirflowException(
                f"killed before topic {self.topic!r} was drained; what was not decided is given back"
            )
        if done.handled:
            self.hook.report_lineage(inputs=[self.topic])
        counted = ("handled", "succeeded", "filtered", "suspended", "failed")
        report: dict[str, Any] = {"topic": self.topic, **{what: getattr(done, what) for what in counted}}
        with self.hook.transaction() as queue:
            counts = queue.drain_counts(self.topic, name, began)
            queue.end_drain(name, report)
        self._log_end(done, counts)
        if failure_limit is not None and (failure := failure_limit.exceeded(self.topic, counts)):
            raise AirflowFailException(str(failure))
        return report

    def _log_end(self, done: "WorkerStatistics", counts: "DrainCounts") -> None:
        """Logs what came of the tasks: a failure that is tried again ends no task, but it does not pass in silence."""
        for_good = min(counts.failed, done.failed)  # the count includes those of a try that was killed
        self.log.log(
            logging.WARNING if done.failed else logging.INFO,
            "%d tasks of topic %s handled: %d succeeded, %d filtered, %d suspended, %d failed (%d FAILED for good,"
            " %d to be tried again).",
            *(done.handled, self.topic, done.succeeded, done.filtered, done.suspended, done.failed),
            *(for_good, done.failed - for_good),
        )

    def on_kill(self) -> None:
        """Gives back what is not decided; what is, is committed."""
        self._killed = True  # Airflow 3 lets execute() go on
        if self._worker is not None:
            self._worker.stop(timedelta(0))

    def _handler(self, context: "Context") -> "WorkHandler":
        """What the worker calls: the function, with the arguments that this task gives it."""
        from airflow_provider_taskq.worker import each
        from airflow_provider_taskq.worker.handlers import WorkHandler

        called = self.python_callable
        if isinstance(called, WorkHandler):
            return called
        given = {**_asked_of_context(called, context, taken=set(self.op_kwargs)), **self.op_kwargs}
        return each(_with_arguments(called, tuple(self.op_args), given), success_on=self.success_on)


def wants_batch(function: Callable[..., Any]) -> bool:
    """Whether a function's second parameter is the batch."""
    return [*inspect.signature(function).parameters][1:2] == ["batch"]


def _exceptions(given: Any) -> tuple[type[BaseException], ...]:
    """The exception classes that were given, one or several; TypeError when the DAG is parsed for anything else."""
    kinds = tuple(given) if isinstance(given, tuple | list) else (given,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise TypeError(f"success_on is an exception class or a tuple of them, not {kind!r}")
    return kinds


def _with_arguments(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The function as the worker calls it: with a task and its batch."""
    wanted = 2 if wants_batch(function) else 1
    if inspect.iscoroutinefunction(function):

        async def handle_async(task: Any, batch: Any) -> Any:
            return await function(*(task, batch)[:wanted], *args, **kwargs)

        return handle_async

    def handle(task: Any, batch: Any) -> Any:
        return function(*(task, batch)[:wanted], *args, **kwargs)

    return handle


def _asked_of_context(function: Callable[..., Any], context: "Context", taken: set[str]) -> dict[str, Any]:
    """What a function names of Airflow's context, the parameters of the task and its batch aside."""
    named = [*inspect.signature(function).parameters][2 if wants_batch(function) else 1 :]
    return {name: context[name] for name in named if name in context and name not in taken}  # type: ignore[literal-required]


def _take_back(queue: "TaskQueue", name: str) -> None:
    """Gives back what earlier tries of this task hold; should one still run, it is locked out."""
    for owner in queue.owners():
        if owner.name.startswith(f"{name}/"):
            queue.release(owner)
    queue.expire()  # and what those hold whose lease has lapsed by now
