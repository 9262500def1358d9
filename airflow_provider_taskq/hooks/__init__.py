"""Hooks: the queue behind an Airflow connection.

The hooks are imported on first use: PostgresHook takes seconds to import, and parsing a DAG does not need it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_taskq.hooks.taskq import TaskQConnectionError, TaskQHook

__all__ = ["TaskQConnectionError", "TaskQHook"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("airflow_provider_taskq.hooks.taskq"), name)
