"""The decisions of all Spark benchmarks: the delay that a flight made up, or that it was canceled."""

import json
from hashlib import sha256

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from airflow_provider_taskq.queue import Decision, Result, Task

SCHEMA = "tailnum string, dep_delay int, arr_delay int"
TURNS = 300  # of a hash: a tenth of a millisecond or so


def decide(tasks: DataFrame) -> DataFrame:
    """Decides with functions of Spark."""
    flight = f.from_json("payload", SCHEMA)
    flown = tasks.select("sequence", flight.alias("flight"))
    late = f.struct("flight.tailnum", (f.col("flight.arr_delay") - f.col("flight.dep_delay")).alias("lost"))
    return flown.select(
        "sequence",
        f.when(f.col("flight.dep_delay").isNull(), "FILTER").otherwise("SUCCESS").alias("result"),
        f.to_json(late).alias("message"),
    )


def decide_one(task: Task) -> Decision:
    """Decides one task in Python, after some computing that a second core can share."""
    digest = json.dumps(task.payload).encode()
    for _ in range(TURNS):
        digest = sha256(digest).digest()
    return Decision(Result.SUCCESS, {"digest": digest.hex()})
