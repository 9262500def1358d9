"""mode=tasks on Spark: it reads the tasks of a topic with filters of the database, and changes nothing."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In, IsNotNull, LessThanOrEqual, Not
from pyspark.sql.functions import count

from airflow_provider_taskq.queue import NewTask, Owner, Result, State, TaskQueue
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.readers import TasksOptions, TasksReader
from airflow_provider_taskq.spark.session import describe_error

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.promise("Filters return the same rows in Spark and in the database"),
]

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
Load = Callable[..., DataFrame]


@pytest.fixture
def load(spark: SparkSession, source: str) -> Load:
    """Reads the topic `work`."""

    def loaded(schema: str | None = None, **options: str) -> DataFrame:
        reader = spark.read.format(source).options(mode="tasks", topic="work", partitions="3", **options)
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


@pytest.fixture
def pushdown(spark: SparkSession) -> Any:
    """Enables the pushdown of filters."""
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.unset(PUSHDOWN)


@pytest.mark.usefixtures("mixed")
def test_tasks_are_read_with_all_columns(load: Load, queue: TaskQueue, spark: SparkSession) -> None:
    rows = {row.sequence: row for row in load(payload="true").collect()}
    zone = spark.conf.get("spark.sql.session.timeZone")
    assert zone
    stored = queue.page("work", size=100)
    assert [task.sequence for task in stored] == sorted(rows)
    for task in stored:
        row = rows[task.sequence]
        assert (row.identifier, row.state, row.status, row.owner) == (
            task.identifier,
            task.state.name,
            task.status,
            task.owner,
        )
        assert (row.payload, row.attempt, row.crashes) == (f'{{"n":{row.identifier[5:]}}}', task.attempt, task.crashes)
        assert (row.completed is None) == (task.completed is None)
        assert row.created.timestamp() == pytest.approx(task.created.timestamp(), abs=1e-5)


@pytest.mark.promise("Payloads and passwords are in no log, error, metric, argument, XCom or plan")
@pytest.mark.usefixtures("mixed")
def test_payloads_are_read_only_on_request(load: Load) -> None:
    assert "payload" not in load().columns
    assert load("state string, payload string").where("state = 'FAILED'").count() == 2
    assert load("payload string").agg(count("payload")).collect()[0][0] == 14
    assert load("identifier string").distinct().count() == 14


@pytest.mark.parametrize("pushed_down", [False, True])
@pytest.mark.parametrize(
    ("condition", "numbers"),
    [
        ("state = 'FAILED'", {0, 1}),
        ("state IN ('ACTIVE', 'READY')", {8, 9, 10, 11, 12, 13}),
        ("state IN ('SUCCEEDED', 'SUSPENDED', 'nonsense')", {2, 3, 6, 7}),
        ("state = 'nonsense'", set()),
        ("state <> 'READY' AND state <> 'FAILED'", {2, 3, 4, 5, 6, 7, 8, 9}),
        ("identifier = 'item-4'", {4}),
        ("identifier IN ('item-4', 'item-12', 'none') AND state = 'READY'", {12}),
        ("sequence > {2} AND sequence <= {5}", {3, 4, 5}),
        ("sequence < {2} OR sequence >= {12}", {0, 1, 12, 13}),
        ("sequence = {3}", {3}),
        ("created <= timestamp'2020-01-01'", set()),
        ("created > timestamp'2020-01-01 00:00:00'", set(range(14))),
        ("identifier LIKE 'item-1%' AND owner IS NULL", {10, 11, 12, 13}),
    ],
)
def test_filters_return_the_same_in_spark_and_in_the_database(
    request: pytest.FixtureRequest, load: Load, mixed: list[int], condition: str, numbers: set[int], pushed_down: bool
) -> None:
    if pushed_down:
        request.getfixturevalue("pushdown")
    rows = load("sequence long, identifier string, state string, created timestamp, owner string").where(
        condition.format(*mixed)
    )
    assert sorted(row.sequence for row in rows.collect()) == [mixed[number] for number in sorted(numbers)]


def plan(tasks: DataFrame) -> str:
    """The plan of Spark."""
    return str(tasks._jdf.queryExecution().executedPlan().toString())


@pytest.mark.usefixtures("pushdown")
def test_the_database_applies_the_filters(load: Load, mixed: list[int]) -> None:
    assert "Filter (" not in plan(load().where(f"state = 'READY' AND sequence > {mixed[0]}"))
    assert "Filter (" not in plan(load("sequence long, state string").where("state = 'FAILED'"))
    assert "Filter (" in plan(load().where("owner IS NULL AND attempt % 2 = 0"))


@pytest.mark.usefixtures("mixed")
def test_spark_applies_the_filters_unless_pushdown_is_enabled(load: Load) -> None:
    assert "Filter (" in plan(load("sequence long, state string").where("state = 'FAILED'"))


def reader(dsn: str, schema: str, *filters: Filter) -> TasksReader:
    from pyspark.sql.types import StructType

    columns = StructType.fromDDL(schema)
    assert isinstance(columns, StructType)
    options = TasksOptions.parse({"mode": "tasks", "topic": "work", "partitions": "2"})
    found = TasksReader(options, columns, ConnectionInfo.resolve(dsn))
    left = list(found.pushFilters(list(filters)))
    assert left == [each for each in filters if isinstance(each, Not)]
    return found


def test_only_the_selected_columns_and_rows_are_sent(dsn: str, mixed: list[int]) -> None:
    scan = reader(
        dsn,
        "sequence bigint, identifier string",
        IsNotNull(("state",)),
        In(("state",), ("READY", "FAILED")),
        GreaterThan(("sequence",), mixed[0]),
        LessThanOrEqual(("sequence",), mixed[11]),
        Not(EqualTo(("identifier",), "x")),
    )
    rows = [row for part in scan.partitions() for batch in scan.read(part) for row in batch.to_pylist()]
    assert rows == [{"sequence": mixed[n], "identifier": f"item-{n}"} for n in (1, 10, 11)]
    assert reader(dsn, "sequence bigint", In(("state",), ("nonsense",))).partitions() == []


def test_tasks_pushed_after_planning_are_not_read(dsn: str, queue: TaskQueue, mixed: list[int]) -> None:
    scan = reader(dsn, "sequence bigint")
    parts = scan.partitions()
    queue.push("work", ["late"])
    rows = [row["sequence"] for part in parts for batch in scan.read(part) for row in batch.to_pylist()]
    assert rows == mixed


def test_a_time_range_is_exact_to_the_microsecond(dsn: str, queue: TaskQueue) -> None:
    from airflow_provider_taskq.spark.readers import PushedFilters

    queue.push("work", ["a"])
    queue.push("work", ["b"])
    first = queue.page("work", size=1)[0].created
    for filters, names in (
        ([GreaterThan(("created",), first)], ["b"]),
        ([LessThanOrEqual(("created",), first)], ["a"]),
        ([GreaterThan(("created",), first - timedelta(microseconds=1))], ["a", "b"]),
    ):
        scan = reader(dsn, "identifier string", *filters)
        rows = [
            row["identifier"] for part in scan.partitions() for batch in scan.read(part) for row in batch.to_pylist()
        ]
        assert rows == names
    assert not PushedFilters().accept(GreaterThan(("created",), first.replace(tzinfo=None)))


@pytest.mark.parametrize(
    ("schema", "options", "words"),
    [
        (None, {"state": "READY"}, "unknown option 'state'"),
        (None, {"payload": "yes"}, "option 'payload' must be true or false"),
        ("sequence string", {}, "unknown column sequence string"),
        ("number long", {}, "unknown column number bigint"),
    ],
)
def test_columns_that_cannot_be_read_are_named(
    load: Load, schema: str | None, options: dict[str, str], words: str
) -> None:
    with pytest.raises(PySparkException) as failed:
        load(schema, **options).collect()
    assert words in describe_error(failed.value)


@pytest.mark.promise("A role may call the functions of its kind, and no others")
def test_a_reader_may_read_tasks_and_nothing_else(
    queue: TaskQueue, conn: psycopg.Connection[Any], mixed: list[int]
) -> None:
    queue.push("work", ["another"])
    name = "taskq_spark_reader"
    conn.execute(f"DROP ROLE IF EXISTS {name}".encode())
    conn.execute(f"CREATE ROLE {name}".encode())
    try:
        conn.execute("SELECT taskq.grant_access(%s, 'reader')", (name,))
        conn.execute(f"SET ROLE {name}".encode())
        slice_of = "SELECT count(*) FROM taskq.task_slice('work', 0, 1000000, %s, NULL, NULL, NULL, false)"
        assert conn.execute(slice_of, ([int(State.FAILED)],)).fetchall() == [(2,)]
        assert conn.execute("SELECT taskq.log_end('work', 0, 3)").fetchall() == [(mixed[2],)]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("SELECT taskq.open_push()")
    finally:
        conn.execute("RESET ROLE")
        conn.execute("SELECT taskq.revoke_access(%s)", (name,))
        conn.execute(f"DROP ROLE {name}".encode())
