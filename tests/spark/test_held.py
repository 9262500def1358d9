"""mode=held on Spark: reading is pure."""

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.readwriter import DataFrameReader

from airflow_provider_taskq.queue import LeaseLost, Owner, TaskQueue
from airflow_provider_taskq.spark.readers import HELD_SCHEMA
from airflow_provider_taskq.spark.session import describe_error, queue_error
from tests.spark.conftest import NUMBER, Complete, Held, Tasks, states

pytestmark = pytest.mark.promise("Held tasks are read again with the same rows, in partitions of nearly equal size")


def test_actions_read_the_same_tasks_again(
    tasks: Tasks, held: Held, queue: TaskQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = tasks(held(100))
    assert frame.schema == HELD_SCHEMA
    assert frame.rdd.getNumPartitions() == 2
    first = {row.sequence for row in frame.collect()}
    assert len(first) == frame.count() == 100
    assert frame.join(frame.select("sequence"), "sequence").count() == 100
    frame.show(2)
    assert "item-0" in capsys.readouterr().out
    assert [row.identifier for row in frame.where(f"{NUMBER} = 42").collect()] == ["item-42"]
    assert states(queue) == {"ACTIVE": 100}


def test_a_failed_task_reads_the_same_again(tasks: Tasks, held: Held) -> None:
    def failing_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        if context is None or context.attemptNumber() == 0:
            raise RuntimeError("the first try of every task fails after it has read everything")

    rows = tasks(held(100)).select("sequence").mapInArrow(failing_once, "sequence long").collect()
    assert len({row.sequence for row in rows}) == len(rows) == 100


def test_without_fence_and_topic_all_held_tasks_are_read(
    tasks: Tasks, held: Held, complete: Complete, queue: TaskQueue, owner: Owner
) -> None:
    assert tasks(options := held(0)).collect() == []
    held(3)
    queue.create_topic("more")
    queue.push("more", ["other"])
    queue.poll("more", owner)
    assert tasks(options).count() == 3
    frame = tasks({"owner": owner.name})
    assert {(row.topic, row.identifier) for row in frame.collect()} == {
        ("work", "item-0"), ("work", "item-1"), ("work", "item-2"), ("more", "other"),
    }  # fmt: skip
    complete(frame.select("sequence", f.lit("SUCCESS").alias("result")), {"owner": owner.name})
    assert queue.held(owner) == []


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"dsn": "postgresql://u:sesame@h/d"}, None, "unknown option 'dsn'"),
        ({"fence": "4711"}, LeaseLost, "the lease of owner 'owner' under fence 4711"),
        ({"owner": "absent", "fence": None}, LeaseLost, "format taskq, mode held: owner 'absent' has no lease"),
    ],
    ids=["an unknown option", "a lost lease", "no lease"],
)
def test_an_error_of_a_read_is_explained_in_one_line(
    tasks: Tasks, held: Held, change: dict[str, str | None], error: type[Exception] | None, words: str
) -> None:
    options = {name: value for name, value in {**held(1), **change}.items() if value is not None}
    with pytest.raises(PySparkException) as failed:
        tasks(options).count()
    assert words in describe_error(failed.value)
    assert "sesame" not in str(failed.value)
    assert error is None or isinstance(queue_error(failed.value), error)


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (
            lambda spark, source: spark.read.format(source).schema("sequence string").options(mode="held", owner="me"),
            "the schema cannot be changed: struct<sequence:bigint",
        ),
        (
            lambda spark, source: spark.read.format(source).options(mode="log", topic="work"),
            "to read, set option mode to 'held' or 'tasks', not 'log'",
        ),
    ],
    ids=["another schema", "a stream's mode"],
)
def test_a_read_of_another_kind_is_refused(
    spark: SparkSession, source: str, use: Callable[[SparkSession, str], DataFrameReader], words: str
) -> None:
    with pytest.raises(PySparkException) as failed:
        use(spark, source).load().collect()
    assert words in describe_error(failed.value)
