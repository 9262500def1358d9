"""A streaming driver that copies a topic's log into another topic, until it is killed, or with `last` to the log's end.

`soak.py DSN-FILE CHECKPOINT [last]`
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.data_source import register_source


def main(dsn_file: Path, checkpoint: Path, *, last: bool) -> None:
    """Runs the query."""
    builder = SparkSession.builder.master("local[2,3]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.memory", "700m").getOrCreate()
    source = register_source(spark, ConnectionInfo.resolve(dsn_file.read_text(), executors_may_override=False))
    log = {"mode": "log", "topic": "work", "partitions": "2", "maxTasksPerTrigger": "20000", "group": "soak"}
    copies = spark.readStream.format(source).options(**log).load().select("identifier", "payload")
    stream = copies.writeStream.format(source).outputMode("append").options(mode="push", topic="copies")
    stream = stream.option("checkpointLocation", str(checkpoint))
    (stream.trigger(availableNow=True) if last else stream).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), last=sys.argv[3:] == ["last"])
