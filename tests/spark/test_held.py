"""Held tasks are read as Arrow batches, in slices: without Spark, and as its DataFrames."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.readwriter import DataFrameReader

from airflow_provider_taskq.queue import LeaseLost, NewTask, Owner, TaskQueue, UnknownTopic
from airflow_provider_taskq.spark import binary_copy
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.data_source import TaskQDataSource
from airflow_provider_taskq.spark.options import HeldOptions
from airflow_provider_taskq.spark.readers import HELD_SCHEMA, HeldReader
from airflow_provider_taskq.spark.session import describe_error
from tests.spark.conftest import Complete, Held, Tasks

pytestmark = pytest.mark.promise("Held tasks are read again with the same rows, in partitions of nearly equal size")


ODD = ["", 'a "quoted", text', "line\nbreak\r\n", "back\\slash \\N \\.", "ünï 😀", "  ", "NULL"]


def reader(dsn: str, options: dict[str, str], partitions: int = 3) -> HeldReader:
    values = {"mode": "held", "partitions": str(partitions), **options}
    return HeldReader(HeldOptions.parse(values, "held"), ConnectionInfo.resolve(dsn))


def all_rows(reader: HeldReader) -> list[dict[str, object]]:
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [row for batch in batches for row in batch.to_pylist()]


def test_every_text_is_read_unchanged(dsn: str, queue: TaskQueue, owner: Owner) -> None:
    tasks = [NewTask(f"id {text}", {"text": text}, text or None, priority=n) for n, text in enumerate(ODD)]
    began = datetime.now(UTC)
    queue.push("work", [*tasks, NewTask("bare"), NewTask("empty reference", reference="")])
    queue.claim("work", owner, 100)
    rows = all_rows(reader(dsn, {"topic": "work", "owner": owner.name, "fence": str(owner.fence)}))
    assert [row["identifier"] for row in rows] == [*(task.identifier for task in tasks), "bare", "empty reference"]
    assert [json.loads(str(row["payload"]))["text"] for row in rows[: len(ODD)]] == ODD
    assert [row["reference"] for row in rows] == [*(text or None for text in ODD), None, ""]
    assert [row["priority"] for row in rows[: len(ODD)]] == list(range(len(ODD)))
    assert rows[-1]["payload"] is None
    assert {(row["attempt"], row["redelivered"], row["topic"]) for row in rows} == {(1, False, "work")}
    stored = queue.task("work", int(str(rows[0]["sequence"])))
    assert stored
    assert rows[0]["created"] == stored.created
    assert abs(stored.created - began) < timedelta(minutes=5)


def test_slices_are_even_and_whole_and_have_the_declared_schema(dsn: str, held: Held) -> None:
    held_reader = reader(dsn, held(10))
    batches = [list(held_reader.read(part)) for part in held_reader.partitions()]
    assert [sum(batch.num_rows for batch in each) for each in batches] == [4, 3, 3]
    assert len({row["sequence"] for row in all_rows(held_reader)}) == 10
    assert from_arrow_schema(batches[0][0].schema) == HELD_SCHEMA


def test_batches_are_bounded_by_rows_and_bytes(dsn: str, held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    held_reader = reader(dsn, held(100), partitions=1)
    monkeypatch.setattr(binary_copy, "BATCH_ROWS", 30)
    assert [batch.num_rows for batch in held_reader.read(held_reader.partitions()[0])] == [30, 30, 30, 10]
    monkeypatch.setattr(binary_copy, "BATCH_BYTES", 1)
    assert {batch.num_rows for batch in held_reader.read(held_reader.partitions()[0])} == {1}


def test_a_row_may_be_larger_than_a_batch(dsn: str, queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", [NewTask("large", "x" * 250_000), NewTask("small")])
    queue.claim("work", owner, 2)
    options = {"topic": "work", "owner": owner.name, "fence": str(owner.fence)}
    assert [len(str(row["payload"])) for row in all_rows(reader(dsn, options))] == [250_002, 4]


def test_a_lease_that_is_gone_refuses_readers(dsn: str, queue: TaskQueue, owner: Owner, held: Held) -> None:
    held_reader = reader(dsn, held(3))
    parts = held_reader.partitions()
    queue.register(owner.name)
    with pytest.raises(LeaseLost):
        list(held_reader.read(parts[0]))
    with pytest.raises(LeaseLost, match="the lease of owner 'owner' under fence"):
        held_reader.partitions()
    source = TaskQDataSource.with_connection(ConnectionInfo.resolve(dsn))({"mode": "held", "owner": "absent"})
    with pytest.raises(LeaseLost, match="format taskq, mode held: owner 'absent' has no lease"):
        source.reader(HELD_SCHEMA)


def test_an_unknown_topic_is_named(dsn: str, owner: Owner) -> None:
    with pytest.raises(UnknownTopic, match="'nowhere'"):
        reader(dsn, {"topic": "nowhere", "owner": owner.name, "fence": str(owner.fence)}).partitions()


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
