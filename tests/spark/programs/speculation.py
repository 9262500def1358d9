"""Drains a topic and pushes to another on a cluster of two hosts, where one try is so slow that Spark starts a second.

Spark never speculates on the host where the first try runs, so the two workers live on two loopback addresses.
"""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_taskq.spark import drain
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.data_source import register_source
from tests.spark.cluster import standalone_cluster

PARTS = 4
HOSTS = ("127.0.0.1", "127.0.0.2")


def slow_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first try of the last partition has yielded everything, and takes ten minutes more: it is killed."""
    yield from batches
    context = TaskContext.get()
    if context is not None and context.partitionId() == PARTS - 1 and context.attemptNumber() == 0:
        time.sleep(600)  # the slow try that makes Spark speculate


def decide(tasks: DataFrame) -> DataFrame:
    """Decides every task, and another follows it."""
    following = 'concat(\'[{"topic": "next", "identifier": "\', identifier, \'"}]\') AS push'
    decided = tasks.selectExpr("sequence", "'SUCCESS' AS result", following)
    return decided.mapInArrow(slow_once, "sequence long, result string, push string")


def push(spark: SparkSession, dsn: str, count: int) -> None:
    """Pushes this number of tasks to the topic `pushed`."""
    frame = spark.range(0, count, 1, PARTS).selectExpr("string(id) AS identifier")
    frame = frame.mapInArrow(slow_once, "identifier string")
    source = register_source(spark, ConnectionInfo.resolve(dsn))
    frame.write.format(source).mode("append").options(mode="push", topic="pushed").save()


def main(dsn_file: Path) -> None:
    """The database comes as an argument of the function, from a file that no executor knows."""
    # The executors import this package through PYTHONPATH.
    with standalone_cluster(dsn_file.parent, HOSTS, {"PYTHONPATH": os.environ["PYTHONPATH"]}) as cluster:
        spark = (
            SparkSession.builder.master(cluster.master)
            .config("spark.ui.enabled", "false")
            .config("spark.executor.memory", "512m")
            .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
            .config("spark.cores.max", "2")
            .config("spark.locality.wait", "0s")
            .config("spark.speculation", "true")
            .config("spark.speculation.interval", "100ms")
            .config("spark.speculation.quantile", "0.5")
            .config("spark.speculation.multiplier", "1.1")
            .config("spark.speculation.efficiency.enabled", "false")
            .getOrCreate()
        )
        dsn = dsn_file.read_text()
        result = drain(spark, "work", "speculating", decide, dsn=dsn, partitions=PARTS)
        print(f"done={result.done} seconds={result.seconds:.0f}", flush=True)  # noqa: T201
        push(spark, dsn, 1_000)
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
