"""A streaming driver over the log of the topic `work`, until it is killed or has caught up.

`stream.py DSN-FILE CHECKPOINT [last]` copies the log into the topic `copies`, with `last` to its end.
`stream.py DSN-FILE CHECKPOINT OWNER FENCE` decides the tasks of the log to its end, five a batch.
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.data_source import register_source


def decide(spark: SparkSession, dsn: str, checkpoint: str, owner: str, fence: str) -> None:
    """Decides the tasks, which the owner holds."""
    source = register_source(spark, ConnectionInfo.resolve(dsn, executors_may_override=False))
    log = {"mode": "log", "topic": "work", "partitions": "1", "maxTasksPerTrigger": "5"}
    tasks = spark.readStream.format(source).options(**log).load()
    decisions = tasks.selectExpr("sequence", "if(sequence % 2 = 0, 'SUCCESS', 'FILTER') AS result")
    stream = decisions.writeStream.format(source).outputMode("append")
    stream = stream.options(mode="complete", owner=owner, fence=fence, checkpointLocation=checkpoint)
    stream.trigger(availableNow=True).start().awaitTermination()


def copy(spark: SparkSession, dsn: str, checkpoint: str, *, last: bool) -> None:
    """Copies the tasks."""
    source = register_source(spark, ConnectionInfo.resolve(dsn, executors_may_override=False))
    log = {"mode": "log", "topic": "work", "partitions": "2", "maxTasksPerTrigger": "20000", "group": "soak"}
    copies = spark.readStream.format(source).options(**log).load().select("identifier", "payload")
    stream = copies.writeStream.format(source).outputMode("append").options(mode="push", topic="copies")
    stream = stream.option("checkpointLocation", checkpoint)
    (stream.trigger(availableNow=True) if last else stream).start().awaitTermination()


def main(dsn_file: str, checkpoint: str, *how: str) -> None:
    """Runs the stream in a new Spark session."""
    builder = SparkSession.builder.master("local[2,3]").config("spark.ui.enabled", "false")
    spark, dsn = builder.config("spark.driver.memory", "700m").getOrCreate(), Path(dsn_file).read_text()
    if len(how) == 2:
        decide(spark, dsn, checkpoint, *how)
    else:
        copy(spark, dsn, checkpoint, last=how == ("last",))


if __name__ == "__main__":
    main(*sys.argv[1:])
