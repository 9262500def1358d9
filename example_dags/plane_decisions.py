"""The transform of the example `taskq_gate`: from a DataFrame of tasks to a DataFrame of decisions."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def decide(tasks: "DataFrame", options: Mapping[str, str]) -> "DataFrame":  # noqa: ARG001  drain's signature
    """Accept planes with a tail number of the United States, which begins with N; filter the others."""
    return tasks.selectExpr("sequence", "CASE WHEN identifier LIKE 'N%' THEN 'SUCCESS' ELSE 'FILTER' END AS result")
