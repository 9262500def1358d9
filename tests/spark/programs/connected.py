"""Works with the queue through Spark Connect, and prints the results as JSON."""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from airflow_provider_taskq.queue import Result, Task, TaskQueue, connect
from airflow_provider_taskq.spark import DrainResult, TaskOutcome, TaskQDataSource, by_task, drain, in_arrow
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.jobs import SparkJobs
from airflow_provider_taskq.spark.streams import ADMISSION_CONTROL
from airflow_provider_taskq.worker import Batch, Composite
from tests.spark.successor import taken_over


def work(spark: SparkSession, queue: TaskQueue, dsn: str, checkpoint: Path) -> dict[str, Any]:
    """Claims tasks here. Through the server it reads, decides and pushes, and copies a log."""
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
    limit = {"maxTasksPerTrigger": "5"} if ADMISSION_CONTROL else {}
    log = spark.readStream.format("taskq").options(mode="log", topic="work", **limit).load()
    stream = log.select("identifier", "payload").writeStream.format("taskq").outputMode("append")
    stream = stream.options(mode="push", topic="copies", checkpointLocation=str(checkpoint))
    for _ in range(2):
        output["ended"] = stream.trigger(availableNow=True).start().awaitTermination(120)
    return output


def decide(task: Task) -> TaskOutcome:
    """Decides one task, which a task of the topic `next` follows."""
    return TaskOutcome(Result.SUCCESS, push={"next": [task.identifier]})


def note(task: Task, batch: Batch) -> None:
    """Decides one task, and pushes another with the decision."""
    batch.push(task, "notes", [task.identifier])


def hang(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Stages the decisions of the first partition. The others wait until Spark ends them."""
    import threading

    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None and context.partitionId():
        threading.Event().wait()
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"sequence": batch["sequence"], "result": ["SUCCESS"] * batch.num_rows})


def error_of(drained: Callable[[], DrainResult]) -> str:
    """The error of a drain."""
    try:
        return f"no error: {drained()}"
    except Exception as error:  # noqa: BLE001 -- the test reads the error
        return f"{type(error).__name__}: {error}"


def drains(spark: SparkSession, queue: TaskQueue, dsn: str) -> dict[str, Any]:
    """Drains through the server: functions in rounds, a composite, an invalid decision, and a lost lease."""
    for topic in ("drained", "next", "notes"):
        queue.create_topic(topic)
    names = [f"item-{number}" for number in range(25)]
    queue.push("drained", names)
    result = drain(spark, "drained", "me", by_task(decide), dsn=dsn, size=10, rounds=None)
    output: dict[str, Any] = {
        "cores": SparkJobs.of(spark).cores(),
        "rounds": result.rounds,
        "done": result.done,
        "pushed": result.pushed,
    }

    queue.push("drained", ["a", "b"])
    output["composed"] = drain(spark, "drained", "me", Composite("noting").with_step(note), dsn=dsn).done

    queue.push("drained", names)
    invalid = partial(drain, spark, "drained", "me", lambda tasks: tasks.selectExpr("sequence", "'DONE' AS result"))
    output["invalid"] = error_of(partial(invalid, dsn=dsn))
    output["released"] = queue.ready("drained", 100)
    # The gate of the successor opens nothing here: `hang` ends only if the server cancels its job.
    hanging = partial(drain, spark, "drained", "me", in_arrow(hang), dsn=dsn, partitions=2, lease=timedelta(seconds=12))
    with tempfile.TemporaryDirectory() as folder, taken_over(dsn, Path(folder) / "gate"):
        output["lost"] = error_of(hanging)
    return output


def main(dsn_file: Path) -> None:
    """The database comes from a file, so that the server, a child of this process, does not inherit it."""
    dsn = dsn_file.read_text()
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    with connect(dsn, autocommit=True) as conn:
        queue = TaskQueue(conn)
        output = work(spark, queue, dsn, dsn_file.with_name("checkpoint"))
        output["drains"] = drains(spark, queue, dsn)
    print(json.dumps(output), flush=True)  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
