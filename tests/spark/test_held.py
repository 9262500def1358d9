"""mode=held on Spark: reading is pure."""

from collections.abc import Callable, Mapping

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from airflow_provider_taskq.queue import LeaseLost, Owner, State, TaskQueue, UnknownTopic
from airflow_provider_taskq.spark.readers import HELD_SCHEMA
from airflow_provider_taskq.spark.session import describe_error, queue_error

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.promise("Held tasks are read again with the same rows, in partitions of nearly equal size"),
]

Tasks = Callable[..., DataFrame]
Held = Callable[[int], dict[str, str]]


def test_actions_read_the_same_tasks_again(tasks: Tasks, held: Held, queue: TaskQueue) -> None:
    frame = tasks(held(1_000))
    assert frame.schema == HELD_SCHEMA
    assert frame.rdd.getNumPartitions() == 4
    first = {row.sequence for row in frame.collect()}
    assert len(first) == frame.count() == frame.select("sequence").distinct().count() == 1_000
    assert {row.sequence for row in frame.collect()} == first
    assert frame.join(frame.select("sequence"), "sequence").count() == 1_000
    assert queue.count("work")["work"][State.ACTIVE].count == 1_000


def test_reading_a_few_rows_changes_nothing(
    tasks: Tasks, held: Held, queue: TaskQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = tasks(held(100))
    frame.show(2)
    assert "item-0" in capsys.readouterr().out
    assert len(frame.take(1)) == 1
    assert frame.where(f.get_json_object("payload", "$.number").cast("int") == 42).collect()[0].identifier == "item-42"
    assert queue.count("work")["work"][State.ACTIVE].count == 100


def test_an_owner_without_tasks_reads_an_empty_dataframe(tasks: Tasks, held: Held) -> None:
    frame = tasks(held(0))
    assert frame.count() == 0
    assert frame.collect() == []


def test_a_failed_task_reads_the_same_again(tasks: Tasks, held: Held) -> None:
    def failing_once(batches):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        if context is None or context.attemptNumber() == 0:
            raise RuntimeError("the first try of every task fails after it has read everything")

    rows = tasks(held(100)).select("sequence").mapInArrow(failing_once, "sequence long").collect()
    assert len({row.sequence for row in rows}) == len(rows) == 100


def test_reading_under_a_lost_lease_raises_lease_lost(tasks: Tasks, held: Held, queue: TaskQueue, owner: Owner) -> None:
    frame = tasks(held(10))
    assert frame.count() == 10
    queue.register(owner.name)
    with pytest.raises(PySparkException) as failed:
        frame.count()
    assert isinstance(queue_error(failed.value), LeaseLost)
    assert describe_error(failed.value).startswith("the lease of owner 'owner' under fence")


def test_without_fence_and_topic_all_held_tasks_are_read(
    tasks: Tasks, held: Held, complete: Callable[[DataFrame, Mapping[str, str]], None], queue: TaskQueue, owner: Owner
) -> None:
    held(3)
    queue.create_topic("more")
    queue.push("more", ["other"])
    queue.poll("more", owner)
    frame = tasks({"owner": owner.name})
    assert {(row.topic, row.identifier) for row in frame.collect()} == {
        ("work", "item-0"), ("work", "item-1"), ("work", "item-2"), ("more", "other"),
    }  # fmt: skip
    complete(frame.select("sequence", f.lit("SUCCESS").alias("result")), {"owner": owner.name})
    assert queue.held(owner) == []


def test_a_name_without_a_lease_is_refused(tasks: Tasks) -> None:
    with pytest.raises(PySparkException) as failed:
        tasks({"owner": "absent"}).count()
    assert describe_error(failed.value) == "format taskq, mode held: owner 'absent' has no lease"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"topic": "nowhere"}, "topic 'nowhere' is not known"),
        ({"fence": ""}, "option 'fence' must be a whole number of at least 1, not ''"),
        ({"dsn": "postgresql://u:sesame@h/d"}, "unknown option 'dsn'"),
    ],
)
def test_invalid_read_options_are_explained(tasks: Tasks, held: Held, change: Mapping[str, str], words: str) -> None:
    with pytest.raises(PySparkException) as failed:
        tasks({**held(1), **change}).count()
    assert words in describe_error(failed.value)
    assert "sesame" not in str(failed.value)
    assert isinstance(queue_error(failed.value), UnknownTopic) == ("topic" in change)


def test_the_schema_cannot_be_changed(spark: SparkSession, source: str, held: Held) -> None:
    reader = spark.read.format(source).schema("sequence string").options(mode="held", **held(1))
    with pytest.raises(PySparkException) as failed:
        reader.load().collect()
    assert "the schema cannot be changed: struct<sequence:bigint" in describe_error(failed.value)
