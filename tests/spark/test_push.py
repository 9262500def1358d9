"""mode=push: all rows of a DataFrame become tasks, each once, or none."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceWriter
from pyspark.sql.types import StructType

from airflow_provider_taskq.queue import Insertion, InvalidTask, State, TaskQueue, TaskQueueError, UnknownTopic
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.data_source import TaskQDataSource
from airflow_provider_taskq.spark.encoding import Attempt, check_task_columns
from airflow_provider_taskq.spark.options import PushOptions
from airflow_provider_taskq.spark.session import describe_error, queue_error
from airflow_provider_taskq.spark.staging import stage_rows, task_context
from airflow_provider_taskq.spark.writers import BatchWriter, commit_stage, new_tasks
from tests.internals import age_upkeep, ttls
from tests.queue.conftest import everything
from tests.roles import logged_in
from tests.spark.conftest import Connection, names, staged

pytestmark = pytest.mark.promise("The rows of a job become tasks once, in order, although Spark repeats its tasks")


WORK = new_tasks(PushOptions.parse({"mode": "push", "topic": "work"}))
Write = Callable[..., None]
PushRows = Callable[..., None]


@pytest.fixture
def write(source: str) -> Write:
    """Pushes a DataFrame, to the topic `work` unless the options say otherwise."""

    def written(frame: DataFrame, **options: str) -> None:
        wanted = {"topic": "work", **options}
        given = {name: value for name, value in wanted.items() if value}
        frame.write.format(source).mode("append").options(mode="push", **given).save()

    return written


@pytest.fixture
def push_rows(dsn: str) -> PushRows:
    """Stages rows as an executor does, and pushes them as the driver does, without Spark."""
    info = ConnectionInfo.resolve(dsn, executors_may_override=False)

    def pushed(rows: pa.RecordBatch | list[dict[str, Any]], **options: str | None) -> None:
        wanted = {"topic": "work", **options}
        given = {name: value for name, value in wanted.items() if value}
        batch = pa.RecordBatch.from_pylist(rows) if isinstance(rows, list) else rows
        writer = BatchWriter(new_tasks(PushOptions.parse({"mode": "push", **given})), open_stage(info), info)
        try:
            attempt = stage_batch(info, writer.stage, batch)
            for _ in range(2):  # the second time as if the first answer had been lost
                writer.commit([attempt])
        except BaseException:
            writer.abort([])
            raise

    return pushed


def open_stage(info: ConnectionInfo) -> str:
    """Opens a stage for a push."""
    with info.queue() as queue:
        return queue.open_stage()[0]


def stage_batch(info: ConnectionInfo, stage: str, batch: pa.RecordBatch) -> Attempt:
    """Stages one batch as partition 0."""
    return stage_rows(info, WORK, [batch], Attempt(stage, 0, 1))


def test_rows_become_tasks_in_the_order_of_their_partitions(
    spark: SparkSession, write: Write, queue: TaskQueue, conn: Connection
) -> None:
    queue.push("work", ["item-7", "older"])
    frame = spark.range(0, 1_000, 1, 4).selectExpr("concat('item-', id) AS identifier", "'{\"n\": 1}' AS payload")
    write(frame, insertion="replace")
    redundant, _, *tasks = everything(queue)
    assert redundant.state is State.REDUNDANT
    assert [task.identifier for task in tasks] == [f"item-{number}" for number in range(1_000)]
    assert all((task.state, task.payload) == (State.READY, {"n": 1}) for task in tasks)
    assert staged(conn) == 0


def test_every_column_of_a_task_arrives(spark: SparkSession, write: Write, queue: TaskQueue) -> None:
    due = datetime(2031, 2, 3, 4, 5, 6, 789_000, tzinfo=UTC)
    queue.push("work", ["first"])
    frame = spark.range(3).selectExpr(
        "element_at(array('at', 'later', 'bare'), int(id + 1)) AS identifier",
        "if(id = 2, null, concat('ref ', id)) AS reference",
        "if(id = 1, true, null) AS suspended",
        f"if(id = 0, timestamp'{due.isoformat()}', null) AS available_at",
        "if(id = 1, INTERVAL '0 01:00:00.5' DAY TO SECOND, null) AS delay",
        "if(id = 2, null, 90.5D) AS ttl",
        "if(id = 2, null, 7) AS priority",
        "if(id = 0, array(struct('work' AS topic, 'first' AS identifier)), null) AS depends_on",
    )
    write(frame)
    at, later, bare = everything(queue)[1:]
    assert (at.identifier, at.reference, at.priority, at.available_at) == ("at", "ref 0", 7, due)
    assert (later.state, later.available_at - later.created) == (State.SUSPENDED, timedelta(seconds=3600.5))
    assert (bare.reference, bare.priority, bare.payload, bare.state) == (None, 0, None, State.READY)
    assert ttls(queue.conn) == [None, timedelta(seconds=90.5), timedelta(seconds=90.5), None]
    assert [each.identifier for each in queue.dependencies("work", at.sequence)] == ["first"]


def test_structs_maps_and_arrays_become_json(spark: SparkSession, write: Write, queue: TaskQueue) -> None:
    payload = (
        "struct('ü \"q\"' AS text, array(1, null) AS list, map('k', 1.5D) AS map, date'2026-01-02' AS day,"
        " timestamp_ntz'2026-01-02 03:04:05' AS at, map('a', array(map('b', 1))) AS nested,"
        " array(struct(1 AS n, null AS none)) AS structs, map(date'2026-01-02', 1) AS days,"
        " map(timestamp_ntz'2026-01-02 03:04:05', 1) AS moments, map(7, true) AS numbers, map(true, 1) AS flags)"
    )
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        columns = ("'a' COLLATE UTF8_LCASE AS identifier", f"{payload} AS payload", "'b' COLLATE UNICODE AS reference")
        write(spark.range(1).selectExpr(*columns))
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    (task,) = everything(queue)
    assert (task.identifier, task.reference) == ("a", "b")
    assert task.payload == {
        "text": 'ü "q"',
        "list": [1, None],
        "map": {"k": 1.5},
        "day": "2026-01-02",
        "at": "2026-01-02T03:04:05.000",
        "nested": {"a": [{"b": 1}]},
        "structs": [{"n": 1, "none": None}],
        "days": {"2026-01-02": 1},
        "moments": {"2026-01-02T03:04:05.000": 1},
        "numbers": {"7": True},
        "flags": {"true": 1},
    }


def test_a_payload_is_written_as_to_json_writes_it(spark: SparkSession, write: Write, queue: TaskQueue) -> None:
    payload = (
        "struct(1.50BD AS price, 1e-10BD AS tiny, 1e20D AS large, float(0.1) AS small, x'00ff' AS bytes,"
        " timestamp'2026-01-02 03:04:05.678' AS at, date'2026-01-02' AS day,"
        " array(struct(2.5BD AS of, null AS none)) AS nested, parse_json('{\"a\": [1, 2.50, null]}') AS variant)"
    )
    frame = spark.range(1).selectExpr("'a' AS Identifier", f"{payload} AS PAYLOAD")
    write(frame.selectExpr("*", "to_json(PAYLOAD, map('ignoreNullFields', 'false')) AS Reference"))
    write(frame.selectExpr("Identifier", "PAYLOAD.variant AS payload"))
    built, variant = everything(queue)
    assert built.payload == json.loads(built.reference or "")
    assert variant.payload == {"a": [1, 2.5, None]}


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())], ids=str)
def test_a_text_may_have_any_type_of_arrow(push_rows: PushRows, queue: TaskQueue, kind: pa.DataType) -> None:
    columns = {name: pa.array([name, "1"]).cast(kind) for name in ("identifier", "reference")}
    lists = pa.array([["ü"], None], pa.large_list(pa.string_view()))
    push_rows(pa.record_batch({**columns, "payload": lists}))
    found = [(task.identifier, task.reference, task.payload) for task in everything(queue)]
    assert found == [("identifier", "reference", ["ü"]), ("1", "1", None)]


@pytest.mark.promise("An older task changes as the table of insertions says")
@pytest.mark.parametrize("insertion", list(Insertion))
def test_each_insertion_changes_older_tasks_as_a_push_does(
    push_rows: PushRows, queue: TaskQueue, insertion: Insertion
) -> None:
    queue.create_topic("plain")
    given = ["a", "b", "a", "c"]
    for topic in ("work", "plain"):
        queue.push(topic, ["a", "z"])
    queue.push("plain", given, insertion)
    push_rows([{"identifier": each} for each in given], insertion=insertion.value)
    pushed = [(task.identifier, task.state, task.descent) for task in everything(queue)]
    assert pushed == [(task.identifier, task.state, task.descent) for task in everything(queue, "plain")]


def test_the_last_row_of_a_repeated_identifier_wins_across_chunks(push_rows: PushRows, queue: TaskQueue) -> None:
    numbers = range(10_050)  # the server pushes 10,000 at once
    priorities = pa.array([number // 10_000 for number in numbers], pa.int32())
    identifiers = [f"item-{number % 100}" for number in numbers]
    push_rows(pa.record_batch({"identifier": identifiers, "priority": priorities}), insertion="DELETE")
    tasks = everything(queue)
    assert [task.identifier for task in tasks] == identifiers[-100:]
    assert [task.priority for task in tasks] == [0] * 50 + [1] * 50


def test_a_row_may_depend_on_one_before_it_in_another_topic(
    spark: SparkSession, write: Write, queue: TaskQueue
) -> None:
    queue.create_topic("after")
    frame = spark.createDataFrame(
        [("work", "a", None), ("after", "b", '[["work", "a"]]'), ("work", "c", '[["after", "b"]]')],
        "topic string, identifier string, depends_on string",
    ).coalesce(1)
    write(frame, topic="")
    found = {topic: everything(queue, topic) for topic in ("work", "after")}
    waits = {each.identifier: queue.dependencies(topic, each.sequence) for topic in found for each in found[topic]}
    assert {name: [on.identifier for on in ons] for name, ons in waits.items()} == {"a": [], "b": ["a"], "c": ["b"]}


MOMENT = datetime(2031, 1, 1, tzinfo=UTC)


@pytest.mark.promise("An invalid task is refused by its position, and nothing is stored")
@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"identifier": " "}, "task at position 7 (identifier ' '): its identifier is blank"),
        ({"priority": 200}, "position 7 (identifier '7'): its priority 200"),
        ({"payload": "{marked"}, "7 of partition 0 (identifier '7'): its payload is not JSON"),
        ({"payload": '"\\u0000"'}, "7'): its payload holds a NUL or"),
        ({"payload": {"x": float("nan")}}, "7'): its payload holds NaN or an infinity, which JSON lacks"),
        ({"reference": "a\0"}, "row 7 of partition 0 (identifier '7'): its reference holds a NUL"),
        ({"delay": float("nan")}, "its delay is not a number, or longer than"),
        ({"delay": 1, "available_at": MOMENT}, "has both available_at and delay"),
        ({"depends_on": "[1]"}, "its depends_on is not a list of pairs"),
        ({"depends_on": '[["work", "no"]]'}, "which has no task"),
    ],
)
def test_a_row_that_breaks_a_rule_is_named_and_nothing_is_pushed(
    push_rows: PushRows, queue: TaskQueue, conn: Connection, values: dict[str, Any], words: str
) -> None:
    rows = [{**dict.fromkeys(values), "identifier": str(number)} for number in range(9)]
    rows[7] |= values
    with pytest.raises(InvalidTask) as refused:
        push_rows(rows)
    assert words in str(refused.value)
    assert "marked" not in str(refused.value)
    assert (names(queue), staged(conn)) == ([], 0)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"identifier": "bigint"}, "column identifier of the new tasks is bigint, not string"),
        ({"identifier": "string", "name": "string"}, "unknown column 'name' in the new tasks"),
        ({"priority": "int"}, "new tasks need a column identifier: these have priority"),
        ({"identifier": "string", "topic": "string"}, "either by the option topic or by a column"),
        ({"identifier": "string", "payload": "struct<wait:interval day>"}, "holds an interval, which is not JSON"),
    ],
)
def test_columns_of_new_tasks_are_checked_by_name_and_type(columns: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidTask, match=words):
        check_task_columns(columns, "work")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["string(id) AS identifier", "if(id = 9, concat('a', char(0)), 'b') AS reference"], "reference holds a NUL"),
        (["if(id = 7, ' ', string(id)) AS identifier"], "task at position 7 (identifier ' '): its identifier is blank"),
    ],
    ids=["an executor", "the driver"],
)
def test_the_error_of_a_process_of_spark_is_described_in_one_line(
    spark: SparkSession, write: Write, queue: TaskQueue, conn: Connection, columns: list[str], words: str
) -> None:
    with pytest.raises(PySparkException) as failed:
        write(spark.range(0, 20, 1, 3).selectExpr(*columns))
    assert isinstance(queue_error(failed.value), InvalidTask)
    assert words in describe_error(failed.value)
    assert (names(queue), staged(conn)) == ([], 0)


def test_an_unknown_topic_is_named(push_rows: PushRows) -> None:
    with pytest.raises(UnknownTopic, match="'nowhere'"):
        push_rows([{"identifier": "a"}], topic="nowhere")


def test_an_empty_dataframe_pushes_nothing(spark: SparkSession, write: Write, queue: TaskQueue) -> None:
    write(spark.range(10).where("id > 20").selectExpr("string(id) AS identifier"))
    assert names(queue) == []


def test_each_row_is_pushed_once_although_spark_repeats_tasks(
    spark: SparkSession, dsn: str, queue: TaskQueue, conn: Connection
) -> None:
    class FailingOnce(BatchWriter):
        """Stages and commits a partition, and fails at the first try of every Spark task."""

        def write(self, iterator: Iterator[pa.RecordBatch]) -> Attempt:
            done = super().write(iterator)
            if task_context().attemptNumber() == 0:
                raise RuntimeError("this try is lost after its staging was committed")
            return done

    info = ConnectionInfo.resolve(dsn, executors_may_override=False)

    class TryingTwice(TaskQDataSource):
        @classmethod
        def name(cls) -> str:
            return "taskq_twice"

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002
            return FailingOnce.open(new_tasks(PushOptions.parse(self.options)), schema, info)

    spark.dataSource.register(TryingTwice)
    frame = spark.range(0, 100, 1, 2).selectExpr("string(id) AS identifier")
    frame.write.format("taskq_twice").mode("append").options(mode="push", topic="work").save()
    assert names(queue) == [str(number) for number in range(100)]
    assert staged(conn) == 0


def test_a_numbered_batch_is_pushed_once(spark: SparkSession, write: Write, queue: TaskQueue) -> None:
    frame = spark.range(10).coalesce(1)
    with pytest.raises(PySparkException, match="its identifier is blank"):  # it does not store its number
        write(frame.selectExpr("' ' AS identifier"), stream="nightly", batch="0")
    for _ in range(2):
        write(frame.selectExpr("string(id) AS identifier"), stream="nightly", batch="0")
    assert len(names(queue)) == 10


def test_a_stream_needs_the_number_of_its_batch(push_rows: PushRows, queue: TaskQueue) -> None:
    with pytest.raises(TaskQueueError, match="needs a 'batch' outside of writeStream"):
        push_rows([{"identifier": "a"}], stream="nightly")
    assert names(queue) == []


def test_rows_lost_in_a_server_crash_are_detected(dsn: str, queue: TaskQueue) -> None:
    stage = str(uuid4())
    with pytest.raises(Exception, match="has 0 of the 5 rows that part 0 reported: run the job again"):
        commit_stage(ConnectionInfo.resolve(dsn), WORK, stage, [Attempt(stage, 0, 1, count=5)])
    assert names(queue) == []


def test_the_staged_tasks_of_dead_drivers_are_pruned_after_a_day(conn: Connection, queue: TaskQueue) -> None:
    ghost = queue.register("ghost")

    def stage_rows(owner: str = "") -> str:
        [(stage,)] = conn.execute(f"SELECT taskq.open_stage({owner})::text".encode()).fetchall()
        conn.execute(
            "INSERT INTO taskq.staged_task (stage, part, attempt, place, identifier)"
            " SELECT %s, 0, 1, g, 'x' FROM generate_series(0, 2) g",
            (stage,),
        )
        return str(stage)

    _old, held = stage_rows(), stage_rows(f"'ghost', {ghost.fence}")
    age_upkeep(conn, timedelta(hours=2))
    fresh = stage_rows()
    age_upkeep(conn, timedelta(hours=23))
    queue.expire()
    left = "SELECT DISTINCT stage::text FROM taskq.staged_task"
    assert {stage for (stage,) in conn.execute(left).fetchall()} == {fresh, held}
    queue.release(ghost)
    queue.expire()
    assert conn.execute(left).fetchall() == [(fresh,)]


@pytest.mark.promise("A role may call the functions of its kind, and no others")
def test_a_producer_may_push_from_spark_and_read_nothing(conn: Connection, dsn: str, queue: TaskQueue) -> None:
    with logged_in(conn, dsn, "producer") as producer:
        info = ConnectionInfo.resolve(producer)
        stage = open_stage(info)
        attempt = stage_batch(info, stage, pa.record_batch({"identifier": ["a", "b"]}))
        commit_stage(info, replace(WORK, stream="a stream"), stage, [attempt], 0)
        with info.queue(autocommit=True) as theirs:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                theirs.conn.execute("SELECT * FROM taskq.staged_task")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                theirs.log_end("work", 0, 1)
    assert names(queue) == ["a", "b"]


def test_an_attempt_that_ends_after_its_job_leaves_nothing(dsn: str, conn: Connection) -> None:
    info = ConnectionInfo.resolve(dsn)
    stage = conn.execute("SELECT taskq.open_stage()::text").fetchall()[0][0]
    BatchWriter(WORK, stage, info).abort([])
    with pytest.raises(TaskQueueError, match="was committed or abandoned"):
        stage_batch(info, stage, pa.record_batch({"identifier": ["late"]}))
    assert staged(conn) == 0
