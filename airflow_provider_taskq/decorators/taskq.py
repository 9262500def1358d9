"""The decorator `@task.taskq`, which drains a topic through the decorated function."""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import DecoratedOperator, task_decorator_factory

from airflow_provider_taskq.operators.process import TaskQProcessOperator, own_parameters

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import TaskDecorator


class TaskQDecoratedOperator(DecoratedOperator, TaskQProcessOperator):  # type: ignore[misc]  # the bases type the callable differently
    """A TaskQProcessOperator for the decorated function.

    The arguments of the call in the DAG file follow the queue's task, and the batch if the function takes it.
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
            python_callable=_dag_file_signature(python_callable),
            op_args=op_args,
            op_kwargs=op_kwargs,
            kwargs_to_upstream=given,
            **kwargs,
        )


def taskq_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> "TaskDecorator":
    """Decorate a function that handles one task of a topic. The parameters are those of TaskQProcessOperator.

    @task.taskq(topic="orders", workers=4)
    def deliver(order: Task) -> None: ...

    deliver()
    """
    kwargs.setdefault("multiple_outputs", True)  # Airflow would infer it from the function's annotation
    return task_decorator_factory(python_callable, decorated_operator_class=TaskQDecoratedOperator, **kwargs)


def _dag_file_signature(function: Callable[..., Any]) -> Callable[..., None]:
    """Return a stand-in with the parameters that the call in the DAG file passes, which Airflow checks."""
    signature = inspect.signature(function)

    def called(*_args: Any, **_kwargs: Any) -> None:
        """Do nothing: Airflow only reads the signature."""

    called.__name__ = function.__name__
    called.__signature__ = signature.replace(parameters=own_parameters(function))  # type: ignore[attr-defined]
    return called
