"""Gates that start in the triggerer: what the scheduler needs in order to create their trigger without a worker."""

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import XComArg

if TYPE_CHECKING:
    from airflow.triggers.base import StartTriggerArgs

_TEMPLATE = ("{{", "{%", "{#")


def trigger_args(
    trigger: str, given: Mapping[str, Any], how: Mapping[str, Any], timeout: timedelta
) -> "StartTriggerArgs | None":
    """The arguments of a trigger that the scheduler creates; None if Airflow could not render them.

    `given`: the fields of the gate, with templates; `how`: arguments without any.
    """
    from airflow.triggers.base import BaseTrigger, StartTriggerArgs

    values = {name: _storable(value) for name, value in given.items()}
    if any(_has_template(value) for value in values.values()) and not hasattr(BaseTrigger, "render_template_fields"):
        return None
    return StartTriggerArgs(
        trigger_cls=trigger, next_method="execute_complete", trigger_kwargs={**values, **how}, timeout=timeout
    )


def _storable(value: Any) -> Any:
    """A value as a trigger takes it: the output of another task becomes the template that pulls it."""
    if isinstance(value, XComArg):
        return str(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, list | tuple | set | frozenset):
        return [_storable(each) for each in value]
    return value


def _has_template(value: Any) -> bool:
    """Whether a value, or one in it, is a template."""
    if isinstance(value, list):
        return any(map(_has_template, value))
    return isinstance(value, str) and any(mark in value for mark in _TEMPLATE)
