"""mode=tasks: it reads the tasks of a topic with filters of the database, and changes nothing."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.functions import count
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from airflow_provider_taskq.queue import NewTask, Owner, Result, TaskQueue, TaskQueueError
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.readers import TASKS_SCHEMA, PushedFilters, TasksOptions, TasksReader
from tests.roles import logged_in
from tests.spark.conftest import Connection

pytestmark = pytest.mark.promise("Filters return the same rows in Spark and in the database")


PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
Load = Callable[..., DataFrame]


@pytest.fixture
def load(spark: SparkSession, source: str) -> Load:
    """Reads the topic `work`."""

    def loaded(schema: str | None = None, **options: str) -> DataFrame:
        reader = spark.read.format(source).options(mode="tasks", topic="work", partitions="2", **options)
        return (reader.schema(schema) if schema else reader).load()

    return loaded


@pytest.fixture
def mixed(queue: TaskQueue, owner: Owner) -> list[int]:
    """Tasks in many states: two of each result, two held, four ready."""
    pushed = [task.sequence for task in queue.push("work", [NewTask(f"item-{n}", {"n": n}) for n in range(14)])]
    polled = queue.poll("work", owner, 10)
    for place, result in enumerate(sorted(Result)):
        queue.complete(owner, dict.fromkeys(polled[2 * place : 2 * place + 2], result))
    return pushed


@pytest.mark.usefixtures("mixed")
def test_tasks_are_read_with_all_columns(load: Load, queue: TaskQueue) -> None:
    rows = {row.sequence: row for row in load(payload="true").collect()}
    stored = queue.page("work", size=100)
    assert [task.sequence for task in stored] == sorted(rows)
    for task in stored:
        row = rows[task.sequence]
        for name in ("identifier", "status", "owner", "attempt", "crashes"):
            assert getattr(row, name) == getattr(task, name)
        assert (row.state, row.payload) == (task.state.name, f'{{"n":{row.identifier[5:]}}}')
        assert (row.completed is None) == (task.completed is None)
        assert row.created.timestamp() == pytest.approx(task.created.timestamp(), abs=1e-5)


def test_sql_reads_from_tables_and_views_and_pushes_by_insert(
    spark: SparkSession, source: str, queue: TaskQueue
) -> None:
    def kept() -> list[list[str]]:
        found = [spark.sql(f"SELECT identifier FROM {name} ORDER BY sequence") for name in ("kept", "viewed")]
        return [[row.identifier for row in frame.collect()] for frame in found]

    reads, new = "OPTIONS (mode 'tasks', topic 'work')", "(identifier, payload, delay, depends_on)"
    queue.push("work", ["old"])
    try:
        spark.sql(f"CREATE TABLE kept USING {source} {reads}")
        spark.sql(f"CREATE TEMPORARY VIEW viewed USING {source} {reads}")
        spark.sql(f"CREATE TABLE pushed USING {source} OPTIONS (mode 'push', Topic 'work')")
        assert kept() == [["old"]] * 2
        values = "to_json(struct(state)), 3600, to_json(array(array(topic, identifier)))"
        for _ in range(2):  # the second time, the batch is known
            spark.sql(f"INSERT INTO pushed WITH (stream 's', batch '1') {new} SELECT 'new', {values} FROM kept")
        assert kept() == [["old", "new"], ["old"]]  # a view plans its read once
        with pytest.raises(PySparkException, match="to write, set option mode to 'push' or 'complete', not 'tasks'"):
            spark.table("kept").writeTo("kept").append()
        with pytest.raises(PySparkException, match="option 'url' is refused"):
            spark.sql(f"CREATE TABLE addressed USING {source} OPTIONS (mode 'tasks', url 'postgresql://')")
        frame = spark.table("kept").select("identifier")  # its own options are those that count
        frame.write.format(source).mode("append").options(mode="push", topic="work").save()
        assert kept()[0] == ["old", "new"] * 2
    finally:
        for kind, name in (("TABLE", "kept"), ("VIEW", "viewed"), ("TABLE", "pushed")):
            spark.sql(f"DROP {kind} IF EXISTS {name}")
    _, task, *_ = queue.page("work")
    assert (task.payload, task.available_at - task.created) == ({"state": "READY"}, timedelta(hours=1))


@pytest.mark.promise("Payloads and passwords are in no log, error, metric, argument, XCom or plan")
@pytest.mark.usefixtures("mixed")
def test_payloads_are_read_only_on_request(load: Load) -> None:
    assert "payload" not in load().columns
    assert load("state string, payload string").where("state = 'FAILED'").agg(count("payload")).collect()[0][0] == 2


def reader(dsn: str, columns: str, *filters: Filter) -> TasksReader:
    """A reader that Spark has given these filters. It leaves to Spark those that the database does not apply."""
    schema = StructType([TASKS_SCHEMA[name] for name in columns.split()])
    options = TasksOptions.parse({"mode": "tasks", "topic": "work", "partitions": "2"})
    found = TasksReader(options, schema, ConnectionInfo.resolve(dsn))
    left = list(found.pushFilters(list(filters)))
    assert left == [each for each in filters if isinstance(each, Not)]
    return found


def rows_of(scan: TasksReader) -> list[dict[str, Any]]:
    return [row for part in scan.partitions() for batch in scan.read(part) for row in batch.to_pylist()]


STATE, NAME, CREATED, SEQUENCE = ("state",), ("identifier",), ("created",), ("sequence",)
YEAR = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("pushed_down", [False, True])
def test_filters_return_the_same_in_spark_and_in_the_database(
    spark: SparkSession, load: Load, mixed: list[int], pushed_down: bool
) -> None:
    schema = "sequence long, identifier string, state string, owner string, created timestamp"
    condition = (
        f"(state IN ('READY', 'FAILED') AND sequence > {mixed[0]} AND created > timestamp'2020-01-01')"
        " AND (identifier LIKE 'item-1%' AND owner IS NULL)"
    )
    if pushed_down:
        spark.conf.set(PUSHDOWN, "true")
    try:
        filtered = load(schema).where(condition)
        plan = str(filtered._jdf.queryExecution().executedPlan().toString())
        simple = load("sequence long, state string").where(f"state = 'READY' AND sequence > {mixed[0]}")
        simple_plan = str(simple._jdf.queryExecution().executedPlan().toString())
        rows = filtered.collect()
    finally:
        spark.conf.unset(PUSHDOWN)
    assert "Filter (" in plan
    assert ("Filter (" in simple_plan) is not pushed_down
    assert sorted(row.sequence for row in rows) == mixed[10:]


def test_only_the_selected_rows_of_a_scan_are_planned(dsn: str, queue: TaskQueue, mixed: list[int]) -> None:
    assert reader(dsn, "sequence", In(STATE, ("nonsense",))).partitions() == []
    given = [In(STATE, ("READY", "ACTIVE")), In(NAME, ("item-9", "item-12")), IsNotNull(NAME), EqualTo(NAME, "item-12")]
    given += [GreaterThan(SEQUENCE, 3), GreaterThanOrEqual(SEQUENCE, 4), LessThan(SEQUENCE, 99), EqualTo(SEQUENCE, 13)]
    given += [GreaterThan(CREATED, YEAR), Not(EqualTo(STATE, "READY"))]
    assert rows_of(reader(dsn, "sequence identifier", *given)) == [{"sequence": 13, "identifier": "item-12"}]
    scan = reader(dsn, "sequence")
    parts = scan.partitions()
    queue.push("work", ["late"])
    assert [row["sequence"] for part in parts for batch in scan.read(part) for row in batch.to_pylist()] == mixed


def test_a_time_range_is_exact_to_the_microsecond(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", ["a"])
    queue.push("work", ["b"])
    first = queue.page("work", size=1)[0].created
    for given, names in (
        (GreaterThan(CREATED, first), ["b"]),
        (LessThanOrEqual(CREATED, first), ["a"]),
        (GreaterThan(CREATED, first - timedelta(microseconds=1)), ["a", "b"]),
    ):
        assert [row["identifier"] for row in rows_of(reader(dsn, "identifier", given))] == names
    assert not PushedFilters().accept(GreaterThan(CREATED, first.replace(tzinfo=None)))


@pytest.mark.parametrize(("name", "kind"), [("sequence", StringType()), ("number", LongType())])
def test_columns_that_cannot_be_read_are_named(dsn: str, name: str, kind: DataType) -> None:
    options = TasksOptions.parse({"mode": "tasks", "topic": "work"})
    with pytest.raises(TaskQueueError, match=f"unknown column {name} {kind.simpleString()}"):
        TasksReader(options, StructType([StructField(name, kind)]), ConnectionInfo.resolve(dsn))


@pytest.mark.promise("A role may call the functions of its kind, and no others")
def test_a_reader_may_read_tasks_and_nothing_else(conn: Connection, dsn: str, mixed: list[int]) -> None:
    with logged_in(conn, dsn, "reader") as role:
        assert rows_of(reader(role, "sequence", EqualTo(STATE, "FAILED"))) == [
            {"sequence": number} for number in mixed[:2]
        ]
        with ConnectionInfo.resolve(role).queue() as queue:
            assert queue.log_end("work", 0, 3) == mixed[2]
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                queue.open_stage()
            queue.conn.rollback()
