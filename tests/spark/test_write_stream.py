"""writeStream: each micro-batch is pushed, or ends its tasks, once, however often Spark replays it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_taskq.queue import LeaseLost, Owner, TaskQueue
from airflow_provider_taskq.spark.session import describe_error, queue_error
from airflow_provider_taskq.spark.streams import ADMISSION_CONTROL
from tests.internals import stream_batches

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.promise("A stream never passes an open push, and a replayed batch has its effect once"),
]

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


def names(queue: TaskQueue, topic: str) -> list[str]:
    return [task.identifier for task in queue.page(topic, size=10_000)]


def left_over(conn: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    return conn.execute(
        "SELECT (SELECT count(*) FROM taskq.staged_task) + (SELECT count(*) FROM taskq.staged)"
    ).fetchall()


def test_a_stream_of_tasks_is_pushed_once_even_if_a_batch_is_replayed(
    run: Run, logged: DataFrame, push: Any, queue: TaskQueue, conn: psycopg.Connection[Any], tmp_path: Path
) -> None:
    queue.create_topic("copies")
    push(12)
    frame = logged.select("identifier", "payload")
    run(frame, mode="push", topic="copies")
    assert names(queue, "copies") == [f"item-{number}" for number in range(12)]
    forget_last_commit(tmp_path / "checkpoint")
    push(3)
    run(frame, mode="push", topic="copies")
    if not ADMISSION_CONTROL:  # there a run that begins with a replay ends with it
        run(frame, mode="push", topic="copies")
    assert names(queue, "copies") == [*(f"item-{number}" for number in range(12)), "item-0", "item-1", "item-2"]
    last = 3 if ADMISSION_CONTROL else 1
    assert stream_batches(conn) == [last]
    assert left_over(conn) == [(0,)]


def test_a_new_checkpoint_is_another_stream(run: Run, logged: DataFrame, push: Any, queue: TaskQueue) -> None:
    queue.create_topic("copies")
    push(4)
    frame = logged.select("identifier")
    run(frame, "one", mode="push", topic="copies")
    run(frame, "two", mode="push", topic="copies")
    assert len(names(queue, "copies")) == 8


def test_the_name_of_a_stream_belongs_to_one_checkpoint_until_it_is_forgotten(
    run: Run, logged: DataFrame, push: Any, queue: TaskQueue, conn: psycopg.Connection[Any], tmp_path: Path
) -> None:
    """Otherwise the batches of the new one, which count from 0, would look like replays, and their tasks be lost."""
    queue.create_topic("copies")
    push(4)
    named = {"mode": "push", "topic": "copies", "stream": "named"}
    run(logged.select("identifier"), "one", **named)
    shutil.rmtree(tmp_path / "one")
    with pytest.raises(PySparkException) as failed:
        run(logged.select("identifier"), "one", **named)
    assert "stream 'named' belongs to another query, which has committed up to batch 0" in describe_error(failed.value)
    assert len(names(queue, "copies")) == 4
    assert conn.execute("SELECT taskq.forget_stream('named'), taskq.forget_stream('named')").fetchall() == [
        (True, False)
    ]
    run(logged.select("identifier"), "one", **named)
    assert len(names(queue, "copies")) == 8
    assert left_over(conn) == [(0,)]


def test_batches_written_by_foreachbatch_belong_to_a_checkpoint_too(
    source: str, logged: DataFrame, push: Any, queue: TaskQueue, tmp_path: Path
) -> None:
    queue.create_topic("copies")
    push(12)

    def write(frame: DataFrame, batch: int) -> None:
        options = {"mode": "push", "topic": "copies", "stream": "named", "batch": str(batch)}
        frame.select("identifier").write.format(source).mode("append").options(**options).save()

    def ran(checkpoint: str) -> None:
        stream = logged.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / checkpoint))
        assert stream.trigger(availableNow=True).start().awaitTermination(180)

    ran("one")
    forget_last_commit(tmp_path / "one")
    ran("one")
    with pytest.raises(PySparkException, match="stream 'named' belongs to another query"):
        ran("two")
    assert names(queue, "copies") == [f"item-{number}" for number in range(12)]


def test_a_batch_that_breaks_a_rule_stops_the_stream_and_can_be_tried_again(
    run: Run, logged: DataFrame, push: Any, queue: TaskQueue, conn: psycopg.Connection[Any]
) -> None:
    queue.create_topic("copies")
    push(8)
    with pytest.raises(PySparkException) as failed:
        run(logged.selectExpr("if(identifier = 'item-6', ' ', identifier) AS identifier"), mode="push", topic="copies")
    assert "its identifier is blank" in describe_error(failed.value)
    assert names(queue, "copies") == [f"item-{number}" for number in range(5 if ADMISSION_CONTROL else 0)]
    run(logged.select("identifier"), mode="push", topic="copies")
    assert names(queue, "copies") == [f"item-{number}" for number in range(8)]
    assert left_over(conn) == [(0,)]


def test_a_stream_of_decisions_ends_each_task_once(
    run: Run,
    logged: DataFrame,
    held: Callable[[int], dict[str, str]],
    queue: TaskQueue,
    conn: psycopg.Connection[Any],
    tmp_path: Path,
) -> None:
    options = {name: value for name, value in held(12).items() if name != "topic"}
    decisions = logged.selectExpr("sequence", "if(sequence % 2 = 0, 'SUCCESS', 'FILTER') AS result")
    run(decisions, mode="complete", **options)
    counts = {state.name: count.count for state, count in queue.count("work")["work"].items()}
    assert counts == {"SUCCEEDED": 6, "FILTERED": 6}
    forget_last_commit(tmp_path / "checkpoint")
    run(decisions, mode="complete", **options)  # a task that is ended already would be refused
    assert {state.name: count.count for state, count in queue.count("work")["work"].items()} == counts
    assert left_over(conn) == [(0,)]


def test_a_stream_whose_owner_is_locked_out_ends_nothing(
    run: Run, logged: DataFrame, held: Callable[[int], dict[str, str]], queue: TaskQueue, owner: Owner
) -> None:
    options = {name: value for name, value in held(4).items() if name != "topic"}
    queue.register(owner.name)
    with pytest.raises(PySparkException) as failed:
        run(logged.selectExpr("sequence", "'SUCCESS' AS result"), mode="complete", **options)
    assert isinstance(queue_error(failed.value), LeaseLost)
    assert {state.name for state in queue.count("work")["work"]} == {"ACTIVE"}


@pytest.mark.usefixtures("queue")
def test_a_stream_refuses_invalid_options(run: Run, logged: DataFrame, push: Any) -> None:
    push(1)
    with pytest.raises(PySparkException) as failed:
        run(logged.select("identifier"), mode="push", topic="work", stream="s", batch="1")
    assert "writeStream numbers its batches" in describe_error(failed.value)


def test_streams_that_stopped_long_ago_are_pruned(conn: psycopg.Connection[Any]) -> None:
    for batch, is_new in ((4, True), (4, False), (3, False)):
        assert conn.execute("SELECT taskq.begin_stream_batch('stream', %s)", (batch,)).fetchall() == [(is_new,)]
    assert conn.execute("SELECT taskq.purge_streams('30 days')").fetchall() == [(0,)]
    assert stream_batches(conn) == [4]
    assert conn.execute("SELECT taskq.purge_streams('0')").fetchall() == [(1,)]
    assert stream_batches(conn) == []
