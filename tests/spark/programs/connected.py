"""Works with the queue through Spark Connect, and prints the results as JSON."""

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from airflow_provider_taskq.queue import TaskQueue, connect
from airflow_provider_taskq.spark import TaskQDataSource, drain
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.streams import ADMISSION_CONTROL


def work(spark: SparkSession, queue: TaskQueue, dsn: str, checkpoint: Path) -> dict[str, Any]:
    """Claims tasks here. Through the server it reads, decides and pushes, tries to drain, and copies a log."""
    spark.dataSource.register(TaskQDataSource.with_connection(ConnectionInfo.resolve(dsn)))
    owner = queue.register("me")
    output: dict[str, Any] = {"session": type(spark).__module__, "claimed": queue.claim("work", owner, 6)}
    held = {"owner": owner.name, "fence": str(owner.fence)}
    tasks = spark.read.format("taskq").options(mode="held", partitions="2", **held).load()
    decisions = tasks.selectExpr("sequence", "'SUCCESS' AS result", "payload AS message")
    decisions.write.format("taskq").mode("append").options(mode="complete", **held).save()
    every = spark.read.format("taskq").options(mode="tasks", topic="work").load()
    output["states"] = sorted(row.state for row in every.where("state = 'SUCCEEDED'").select("state").collect())
    new = spark.createDataFrame([("a",), ("b",)], "identifier string").coalesce(1)
    new.write.format("taskq").mode("append").options(mode="push", topic="work").save()
    try:
        drain(spark, "work", "me", lambda tasks: tasks, dsn=dsn)
    except Exception as error:  # noqa: BLE001 -- the test reads the error
        output["drain"] = f"{type(error).__name__}: {error}"
    limit = {"maxTasksPerTrigger": "5"} if ADMISSION_CONTROL else {}
    log = spark.readStream.format("taskq").options(mode="log", topic="work", **limit).load()
    stream = log.select("identifier", "payload").writeStream.format("taskq").outputMode("append")
    stream = stream.options(mode="push", topic="copies", checkpointLocation=str(checkpoint))
    for _ in range(2):
        output["ended"] = stream.trigger(availableNow=True).start().awaitTermination(120)
    return output


def main(dsn_file: Path) -> None:
    """The database comes from a file, so that the server, a child of this process, does not inherit it."""
    dsn = dsn_file.read_text()
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    with connect(dsn, autocommit=True) as conn:
        output = work(spark, TaskQueue(conn), dsn, dsn_file.with_name("checkpoint"))
    print(json.dumps(output), flush=True)  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
