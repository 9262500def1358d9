"""A streaming driver that decides the tasks of a topic's log, five a batch, until it has caught up or is killed.

`decided_stream.py DSN-FILE CHECKPOINT OWNER FENCE`
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.data_source import register_source


def decide(spark: SparkSession, dsn: str, checkpoint: str, owner: str, fence: str) -> None:
    """Runs the query to the log's end."""
    source = register_source(spark, ConnectionInfo.resolve(dsn, executors_may_override=False))
    log = {"mode": "log", "topic": "work", "partitions": "1", "maxTasksPerTrigger": "5"}
    tasks = spark.readStream.format(source).options(**log).load()
    decisions = tasks.selectExpr("sequence", "if(sequence % 2 = 0, 'SUCCESS', 'FILTER') AS result")
    stream = decisions.writeStream.format(source).outputMode("append")
    stream = stream.options(mode="complete", owner=owner, fence=fence, checkpointLocation=checkpoint)
    stream.trigger(availableNow=True).start().awaitTermination()


def main(dsn_file: Path, *where: str) -> None:
    """Runs the stream in a new Spark session."""
    builder = SparkSession.builder.master("local[2,3]").config("spark.ui.enabled", "false")
    decide(builder.config("spark.driver.memory", "700m").getOrCreate(), dsn_file.read_text(), *where)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
