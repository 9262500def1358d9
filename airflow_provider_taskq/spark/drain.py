"""`python -m airflow_provider_taskq.spark.drain`: the drain as a program (its arguments: draining/application.py).

The function `drain` has the same name as this module. Whoever imports the module finds the function in it, and may
also call the module: importing it puts it where `airflow_provider_taskq.spark.drain` was the function.
"""

import sys
from types import ModuleType
from typing import Any

if __name__ == "__main__":
    from airflow_provider_taskq.spark import run

    sys.exit(run())

from airflow_provider_taskq.spark import DrainResult, drain  # noqa: PLW0406 -- the function

__all__ = ["DrainResult", "drain"]


class _Drain(ModuleType):
    """A module that is called like the function it is named after."""

    def __call__(self, *arguments: Any, **options: Any) -> DrainResult:
        return drain(*arguments, **options)


sys.modules[__name__].__class__ = _Drain
