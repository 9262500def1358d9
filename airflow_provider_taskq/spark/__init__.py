"""TaskQ on Apache Spark: the data source `taskq`, and `drain`, which processes a topic on a cluster.

Importing this package imports no PySpark; the first use of one of its names does.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_taskq.spark.composite import by_composite
    from airflow_provider_taskq.spark.data_source import TaskQDataSource
    from airflow_provider_taskq.spark.drain import DrainResult, StopReason, drain
    from airflow_provider_taskq.spark.progress import DrainProgress
    from airflow_provider_taskq.spark.transforms import JunctionGroups, TaskOutcome, by_task, in_arrow, in_pandas

__all__ = [
    "DrainProgress",
    "DrainResult",
    "JunctionGroups",
    "StopReason",
    "TaskOutcome",
    "TaskQDataSource",
    "application_path",
    "by_composite",
    "by_task",
    "drain",
    "in_arrow",
    "in_pandas",
]

_MODULES = {
    "DrainProgress": "progress",
    "DrainResult": "drain",
    "JunctionGroups": "transforms",
    "StopReason": "drain",
    "TaskOutcome": "transforms",
    "TaskQDataSource": "data_source",
    "by_composite": "composite",
    "by_task": "transforms",
    "drain": "drain",
    "in_arrow": "transforms",
    "in_pandas": "transforms",
}


def application_path() -> str:
    """Return the path of the drain's program, for spark-submit or for the `application` of SparkSubmitOperator."""
    return str(Path(__file__).with_name("application.py"))


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "py4j", "pyarrow"):
            raise
        raise ImportError(
            f"airflow_provider_taskq.spark needs {error.name}: install airflow-provider-taskq with its extra spark"
        ) from None
    # The import of the module `drain` has just bound the name `drain` of this package to the module.
    globals()[name] = value
    return value
