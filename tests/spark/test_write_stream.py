"""writeStream: each micro-batch is pushed, or ends its tasks, once, however often Spark replays it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from airflow_provider_taskq.queue import TaskQueue, TaskQueueError
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.options import PushOptions
from airflow_provider_taskq.spark.streams import ADMISSION_CONTROL
from airflow_provider_taskq.spark.writers import StreamWriter, new_tasks
from tests.internals import stream_batches
from tests.spark.conftest import Connection, Held, Push, names, staged, states

pytestmark = pytest.mark.promise("A stream never passes an open push, and a replayed batch has its effect once")


Run = Callable[..., None]


@pytest.fixture
def logged(spark: SparkSession, source: str) -> DataFrame:
    """The log of `work` as a stream, five tasks a batch, or all before Spark 4.2."""
    options = {
        "mode": "log",
        "topic": "work",
        "partitions": "2",
        **({"maxTasksPerTrigger": "5"} if ADMISSION_CONTROL else {}),
    }
    return spark.readStream.format(source).options(**options).load()


@pytest.fixture
def run(source: str, tmp_path: Path) -> Run:
    """Writes a stream until it has caught up, under a checkpoint."""

    def ran(frame: DataFrame, checkpoint: str = "checkpoint", **options: str) -> None:
        stream = frame.writeStream.format(source).outputMode("append").options(**options)
        query = stream.option("checkpointLocation", str(tmp_path / checkpoint)).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(180)
        finally:
            query.stop()

    return ran


def forget_last_commit(checkpoint: Path) -> None:
    """Resets a checkpoint to the moment at which Spark has planned its last batch and not noted its end."""
    commits = sorted(
        (path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda p: int(p.name)
    )
    commits[-1].unlink()
    for path in (checkpoint / "commits").glob(".*crc"):
        path.unlink()


def test_a_stream_of_tasks_is_pushed_once_even_if_a_batch_is_replayed(
    run: Run, logged: DataFrame, push: Push, queue: TaskQueue, conn: Connection, tmp_path: Path
) -> None:
    queue.create_topic("copies")
    push(7)
    frame = logged.select("identifier", "payload")
    run(frame, mode="push", topic="copies")
    first = [f"item-{number}" for number in range(7)]
    assert names(queue, "copies") == first
    forget_last_commit(tmp_path / "checkpoint")
    push(2)
    run(frame, mode="push", topic="copies")
    if not ADMISSION_CONTROL:  # there a run that begins with a replay ends with it
        run(frame, mode="push", topic="copies")
    assert names(queue, "copies") == [*first, "item-0", "item-1"]
    assert stream_batches(conn) == [2 if ADMISSION_CONTROL else 1]
    run(frame, "another", mode="push", topic="copies")  # a new checkpoint is another stream
    assert names(queue, "copies") == [*first, "item-0", "item-1", *first, "item-0", "item-1"]
    assert staged(conn) == 0


def test_batches_written_by_foreachbatch_belong_to_a_checkpoint_too(
    source: str, logged: DataFrame, push: Push, queue: TaskQueue, tmp_path: Path
) -> None:
    queue.create_topic("copies")
    push(7)

    def write(frame: DataFrame, batch: int) -> None:
        options = {"mode": "push", "topic": "copies", "stream": "named", "batch": str(batch)}
        frame.select("identifier").write.format(source).mode("append").options(**options).save()

    def ran(checkpoint: str) -> None:
        stream = logged.writeStream.outputMode("update").foreachBatch(write)
        stream = stream.option("checkpointLocation", str(tmp_path / checkpoint))
        assert stream.trigger(availableNow=True).start().awaitTermination(180)

    refused = logged.writeStream.format(source).outputMode("update").options(mode="push", topic="copies")
    with pytest.raises(PySparkException, match=r"(?i)update"):  # by Spark itself
        refused.start(checkpointLocation=str(tmp_path / "refused")).awaitTermination(180)
    ran("one")
    forget_last_commit(tmp_path / "one")
    ran("one")
    first = [f"item-{number}" for number in range(7)]
    assert names(queue, "copies") == first
    ran("two")  # which counts from 0 again
    assert names(queue, "copies") == first * 2


def test_a_stream_of_decisions_ends_each_task_once(
    run: Run, logged: DataFrame, held: Held, queue: TaskQueue, conn: Connection, tmp_path: Path
) -> None:
    options = {name: value for name, value in held(8).items() if name != "topic"}
    decisions = logged.selectExpr("sequence", "if(sequence % 2 = 0, 'SUCCESS', 'FILTER') AS result")
    run(decisions, mode="complete", **options)
    assert states(queue) == {"SUCCEEDED": 4, "FILTERED": 4}
    forget_last_commit(tmp_path / "checkpoint")
    run(decisions, mode="complete", **options)  # a task that is ended already would be refused
    assert states(queue) == {"SUCCEEDED": 4, "FILTERED": 4}
    assert staged(conn) == 0


def test_a_stream_numbers_its_batches_itself(dsn: str) -> None:
    options = PushOptions.parse({"mode": "push", "topic": "work", "stream": "s", "batch": "1"})
    schema = StructType([StructField("identifier", StringType())])
    with pytest.raises(TaskQueueError, match="writeStream numbers its batches"):
        StreamWriter.open(new_tasks(options), schema, ConnectionInfo.resolve(dsn))


def begin(conn: Connection, stream: str, batch: int, query: str | None = None) -> bool:
    row = conn.execute("SELECT taskq.begin_stream_batch(%s, %s, %s)", (stream, batch, query)).fetchall()
    return bool(row[0][0])


def test_a_stream_takes_each_batch_once_and_is_pruned_long_after_it_stopped(conn: Connection) -> None:
    for stream, batch, is_new in (("a", 4, True), ("a", 4, False), ("a", 3, False), ("a", 5, True), ("b", 0, True)):
        assert begin(conn, stream, batch) == is_new
    conn.execute("SELECT taskq.purge_owners('30 days')")
    assert stream_batches(conn) == [5, 0]
    conn.execute("SELECT taskq.purge_owners('0')")
    assert stream_batches(conn) == []


def test_each_checkpoint_of_a_stream_numbers_its_own_batches(conn: Connection) -> None:
    """Otherwise the batches of a new one, which count from 0, would look like replays, and their tasks be lost."""
    for query in ("query", "another", None):
        assert [begin(conn, "named", batch, query) for batch in (0, 0, 1, 0)] == [True, False, True, False]
