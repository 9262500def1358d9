"""What Spark's Python workers are spared: a walk through everything that was ever imported, after each task."""

import gc
import sys
from functools import cache


@cache
def settle() -> None:
    """Takes what a worker has imported out of the reach of garbage collections, once in its life.

    Spark's daemon runs a full one after every task of a worker that it uses again, which walks all that pyspark,
    pyarrow, NumPy and psycopg have made: 50 ms, as long as it takes to read 20,000 tasks. Elsewhere nothing is done.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == "pyspark.daemon":
        gc.freeze()
