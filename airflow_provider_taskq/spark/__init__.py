"""TaskQ on Apache Spark: the data source `taskq`, and `drain`, which works a topic off on a cluster.

Importing this package needs no PySpark; using a name of it does.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_taskq.spark.composite import by_composite
    from airflow_provider_taskq.spark.data_source import TaskQDataSource
    from airflow_provider_taskq.spark.drain import DrainResult, drain
    from airflow_provider_taskq.spark.limits import Ended
    from airflow_provider_taskq.spark.progress import Progress
    from airflow_provider_taskq.spark.transforms import Decided, Groups, by_task, in_arrow, in_pandas

__all__ = [
    "Decided",
    "DrainResult",
    "Ended",
    "Groups",
    "Progress",
    "TaskQDataSource",
    "application_path",
    "by_composite",
    "by_task",
    "drain",
    "in_arrow",
    "in_pandas",
]

_HOMES = {
    "Decided": "transforms",
    "DrainResult": "drain",
    "Ended": "limits",
    "Groups": "transforms",
    "Progress": "progress",
    "TaskQDataSource": "data_source",
    "by_composite": "composite",
    "by_task": "transforms",
    "drain": "drain",
    "in_arrow": "transforms",
    "in_pandas": "transforms",
}


def application_path() -> str:
    """The file to give to spark-submit, or to SparkSubmitOperator as its `application`: the drain as a program."""
    return str(Path(__file__).with_name("drain_app.py"))


def __getattr__(name: str) -> Any:
    """Finds a public name in the module that defines it, which is where PySpark is needed."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Stored, as the import of the module `drain` has just put the module where the function belongs.
    globals()[name] = value = _found(_HOMES[name], name)
    return value


def run() -> int:
    """Runs the drain as a program, and returns its exit code."""
    try:
        return int(_found("application", "main")())
    except ImportError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1


def _found(module: str, name: str) -> Any:
    """A name of a module that needs PySpark."""
    try:
        return getattr(import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "py4j", "pyarrow"):
            raise
        raise ImportError(
            f"airflow_provider_taskq.spark needs {error.name}: pip install 'airflow-provider-taskq[spark]'"
        ) from None
