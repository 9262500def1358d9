"""Drains a topic on two executors of their own, where one try of a task is so slow that Spark starts a second."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_taskq.spark import drain


def decide(tasks: DataFrame) -> DataFrame:
    """Decides every task; the first try of the last partition takes a minute if nobody is faster."""

    def slow_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        if context is not None and context.partitionId() == 3 and context.attemptNumber() == 0:
            time.sleep(60)

    return tasks.selectExpr("sequence", "'SUCCESS' AS result").mapInArrow(slow_once, "sequence long, result string")


def main(dsn_file: str) -> None:
    """The database comes as an argument of the function, from a file that no executor is told of."""
    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.speculation", "true")
        .config("spark.speculation.interval", "100ms")
        .config("spark.speculation.quantile", "0.5")
        .config("spark.speculation.minTaskRuntime", "100ms")
        .getOrCreate()
    )
    began = time.monotonic()
    result = drain(spark, "work", "speculating", decide, dsn=Path(dsn_file).read_text(), partitions=4)
    tries = spark.sparkContext._jsc.sc().statusStore().stageList(None)
    speculated = [tries.apply(i).numTasks() < tries.apply(i).numCompleteTasks() for i in range(tries.size())]
    print(f"done={result.done} seconds={time.monotonic() - began:.0f} {speculated}")  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
