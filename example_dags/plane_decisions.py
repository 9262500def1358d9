"""What Spark decides in the example `taskq_gate`: a DataFrame of tasks in, a DataFrame of decisions out."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def decide(tasks: "DataFrame", options: Mapping[str, str]) -> "DataFrame":  # noqa: ARG001  drain's signature
    """Accepts planes whose tail number begins with N, as those of the United States do; filters the others."""
    return tasks.selectExpr("sequence", "CASE WHEN identifier LIKE 'N%' THEN 'SUCCESS' ELSE 'FILTER' END AS result")
