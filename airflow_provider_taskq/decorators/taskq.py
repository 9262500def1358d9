"""`@task.taskq`: a function that a topic's tasks go through."""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import DecoratedOperator, task_decorator_factory

from airflow_provider_taskq.operators.process import TaskQProcessOperator, wants_batch

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import TaskDecorator


class TaskQDecoratedOperator(DecoratedOperator, TaskQProcessOperator):  # type: ignore[misc]  # one says less of its callable
    """TaskQProcessOperator around the decorated function.

    What the function is called with in the DAG file follows the queue's task, and the batch if it wants that.
    """

    template_fields: Sequence[str] = TaskQProcessOperator.template_fields
    custom_operator_name = "@task.taskq"

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        given = {"python_callable": python_callable, "op_args": op_args, "op_kwargs": op_kwargs}
        super().__init__(
            python_callable=_as_called(python_callable),
            op_args=op_args,
            op_kwargs=op_kwargs,
            kwargs_to_upstream=given,
            **kwargs,
        )


def taskq_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> "TaskDecorator":
    """Makes a function one that is called for each task of a topic; takes what TaskQProcessOperator takes.

    @task.taskq(topic="orders", workers=4)
    def deliver(order: Task) -> None: ...

    deliver()
    """
    kwargs.setdefault("multiple_outputs", True)  # Airflow would take the annotation of a decision for the task's result
    return task_decorator_factory(python_callable, decorated_operator_class=TaskQDecoratedOperator, **kwargs)


def _as_called(function: Callable[..., Any]) -> Callable[..., None]:
    """A stand-in whose parameters are those that a DAG's author gives: Airflow checks the call against them."""
    signature = inspect.signature(function)
    given = [*signature.parameters.values()][2 if wants_batch(function) else 1 :]

    def called(*_args: Any, **_kwargs: Any) -> None:
        """Never called."""

    called.__name__ = function.__name__
    called.__signature__ = signature.replace(parameters=given)  # type: ignore[attr-defined]
    return called
