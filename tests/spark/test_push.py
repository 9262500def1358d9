"""mode=push on Spark: all rows of a DataFrame become tasks, each once, or none."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceWriter
from pyspark.sql.types import StructType

from airflow_provider_taskq.queue import State, TaskInfo, TaskQueue, TaskQueueError, UnknownTopic
from airflow_provider_taskq.spark.binary_copy import SIGNATURE, TRAILER
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.data_source import TaskQDataSource
from airflow_provider_taskq.spark.encoding import COPY_TASKS, encode_tasks
from airflow_provider_taskq.spark.options import PushOptions
from airflow_provider_taskq.spark.session import describe_error, queue_error
from airflow_provider_taskq.spark.staging import StagedAttempt, stage_rows, task_context
from airflow_provider_taskq.spark.writers import PushWriter, push_stage
from tests.internals import interrupted, ttls

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.promise("The rows of a job become tasks once, in order, although Spark repeats its tasks"),
]

Push = Callable[..., None]


@pytest.fixture
def write(source: str) -> Push:
    """Pushes a DataFrame, to the topic `work` unless the options say otherwise."""

    def written(frame: DataFrame, **options: str) -> None:
        wanted = {"topic": "work", **options}
        given = {name: value for name, value in wanted.items() if value}
        frame.write.format(source).mode("append").options(mode="push", **given).save()

    return written


def everything(queue: TaskQueue, topic: str = "work") -> list[TaskInfo]:
    return queue.page(topic, size=1_000_000)


def staged(conn: psycopg.Connection[Any]) -> object:
    return conn.execute("SELECT count(*) FROM taskq.staged_task").fetchall()[0][0]


def test_rows_become_tasks_in_the_order_of_their_partitions(
    spark: SparkSession, write: Push, queue: TaskQueue, conn: psycopg.Connection[Any]
) -> None:
    write(spark.range(0, 25_000, 1, 4).selectExpr("concat('item-', id) AS identifier", "'{\"n\": 1}' AS payload"))
    tasks = everything(queue)
    assert [task.identifier for task in tasks] == [f"item-{number}" for number in range(25_000)]
    assert {(task.state, task.payload["n"]) for task in tasks if isinstance(task.payload, dict)} == {(State.READY, 1)}
    assert staged(conn) == 0


def test_every_column_of_a_task_arrives(spark: SparkSession, write: Push, queue: TaskQueue) -> None:
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


def test_structs_maps_and_arrays_become_json(spark: SparkSession, write: Push, queue: TaskQueue) -> None:
    times = "date'2026-01-02' AS day, timestamp_ntz'2026-01-02 03:04:05' AS at"
    for payload in (
        f"struct('ü \"q\"' AS text, array(1, null) AS list, map('k', 1.5D) AS map, {times})",
        "map('a', array(map('b', 1)))",
        "array(struct(1 AS n, null AS none))",
    ):
        write(spark.range(1).selectExpr("'a' AS identifier", f"{payload} AS payload"))
    first, second, third = [task.payload for task in everything(queue)]
    assert first == {
        "text": 'ü "q"',
        "list": [1, None],
        "map": {"k": 1.5},
        "day": "2026-01-02",
        "at": "2026-01-02T03:04:05",
    }
    assert second == {"a": [{"b": 1}]}
    assert third == [{"n": 1, "none": None}]


@pytest.mark.promise("An older task changes as the table of insertions says")
@pytest.mark.parametrize("insertion", ["append", "SUPERSEDE", "REPLACE", "DELETE"])
def test_each_insertion_changes_older_tasks_as_a_push_does(
    spark: SparkSession, write: Push, queue: TaskQueue, insertion: str
) -> None:
    from airflow_provider_taskq.queue import Insertion

    queue.create_topic("plain")
    names = ["a", "b", "a", "c"]
    for topic in ("work", "plain"):
        queue.push(topic, ["a", "z"])
    queue.push("plain", names, Insertion[insertion.upper()])
    listed = ", ".join(repr(name) for name in names)
    frame = spark.range(0, 4, 1, 2).selectExpr(f"element_at(array({listed}), int(id + 1)) AS identifier")
    write(frame, insertion=insertion)
    pushed = [(task.identifier, task.state, task.descent) for task in everything(queue)]
    assert pushed == [(task.identifier, task.state, task.descent) for task in everything(queue, "plain")]


def test_the_last_row_of_a_repeated_identifier_wins_across_chunks(
    spark: SparkSession, write: Push, queue: TaskQueue
) -> None:
    frame = spark.range(0, 30_000, 1, 2).selectExpr("concat('item-', id % 10000) AS identifier", "id AS priority")
    write(frame.selectExpr("identifier", "int(priority / 10000) AS priority"), insertion="DELETE")
    tasks = everything(queue)
    assert len(tasks) == 10_000
    assert {task.priority for task in tasks} == {2}


def test_rows_go_to_the_topics_they_name(spark: SparkSession, write: Push, queue: TaskQueue) -> None:
    queue.create_topic("other")
    frame = spark.range(0, 100, 1, 3).selectExpr("if(id % 2 = 0, 'work', 'other') AS topic", "string(id) AS identifier")
    write(frame, topic="")
    assert [task.identifier for task in everything(queue)] == [str(number) for number in range(0, 100, 2)]
    assert [task.identifier for task in everything(queue, "other")] == [str(number) for number in range(1, 100, 2)]


def test_a_row_may_depend_on_one_before_it_in_another_topic(spark: SparkSession, write: Push, queue: TaskQueue) -> None:
    queue.create_topic("after")
    frame = spark.createDataFrame(
        [("work", "a", None), ("after", "b", '[["work", "a"]]'), ("work", "c", '[["after", "b"]]')],
        "topic string, identifier string, depends_on string",
    ).coalesce(1)
    write(frame, topic="")
    found = {topic: everything(queue, topic) for topic in ("work", "after")}
    waits = {each.identifier: queue.dependencies(topic, each.sequence) for topic in found for each in found[topic]}
    assert {name: [on.identifier for on in ons] for name, ons in waits.items()} == {"a": [], "b": ["a"], "c": ["b"]}


@pytest.mark.promise("An invalid task is refused by its position, and nothing is stored")
@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["if(id = 7, ' ', string(id)) AS identifier"], "task at position 7 (identifier ' '): its identifier is blank"),
        (
            ["string(id) AS identifier", "if(id = 12, 200, 1) AS priority"],
            "position 12 (identifier '12'): its priority 200",
        ),
        (
            ["string(id) AS identifier", "if(id = 9, '{marked', '1') AS payload"],
            "9 (identifier '9'): its payload is not",
        ),
        (
            ["string(id) AS identifier", "if(id = 9, '\"\\\\u0000\"', '1') AS payload"],
            "9'): its payload holds a NUL or",
        ),
        (["string(id) AS identifier", "if(id = 9, concat('a', char(0)), 'b') AS reference"], "reference holds a NUL"),
        (
            ["string(id) AS identifier", "if(id = 9, double('nan'), 1) AS delay"],
            "its delay is not a number, or longer than",
        ),
        (["string(id) AS identifier", "1 AS delay", "now() AS available_at"], "has both available_at and delay"),
        (["string(id) AS identifier", "'[1]' AS depends_on"], "its depends_on is not a list of pairs"),
        (["string(id) AS identifier", '\'[["work", "no"]]\' AS depends_on'], "which has no task"),
        (["id AS identifier"], "column identifier of the new tasks is bigint, not string"),
        (["string(id) AS name"], "unknown column 'name' in the new tasks"),
        (["1 AS priority"], "new tasks need a column identifier: these have priority"),
        (["string(id) AS identifier", "'work' AS topic"], "either by the option topic or by a column"),
        (["string(id) AS identifier", "struct(1.5 AS price) AS payload"], "holds a decimal, which is not JSON"),
        (["string(id) AS identifier", "struct(double('nan') AS x) AS payload"], "its payload"),
    ],
)
def test_a_row_that_breaks_a_rule_is_named_and_nothing_is_pushed(
    spark: SparkSession, write: Push, queue: TaskQueue, conn: psycopg.Connection[Any], columns: list[str], words: str
) -> None:
    with pytest.raises(PySparkException) as failed:
        write(spark.range(0, 20, 1, 3).selectExpr(*columns))
    assert words in describe_error(failed.value)
    assert "marked" not in describe_error(failed.value)
    assert everything(queue) == []
    assert staged(conn) == 0


def test_an_unknown_topic_is_named(spark: SparkSession, write: Push) -> None:
    with pytest.raises(PySparkException) as failed:
        write(spark.range(3).selectExpr("string(id) AS identifier"), topic="nowhere")
    assert isinstance(queue_error(failed.value), UnknownTopic)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"insertion": "UPSERT"}, "unknown insertion 'UPSERT': use one of APPEND"),
        ({"owner": "me"}, "unknown option 'owner'"),
        ({"batch": "3"}, "option 'batch' needs option 'stream'"),
        ({"stream": "s"}, "needs a 'batch' outside of writeStream"),
    ],
)
def test_options_are_checked(
    spark: SparkSession, write: Push, queue: TaskQueue, options: dict[str, str], words: str
) -> None:
    with pytest.raises(PySparkException) as failed:
        write(spark.range(3).selectExpr("string(id) AS identifier"), **options)
    assert words in describe_error(failed.value)
    assert everything(queue) == []


def test_an_empty_dataframe_pushes_nothing(spark: SparkSession, write: Push, queue: TaskQueue) -> None:
    write(spark.range(0).selectExpr("string(id) AS identifier"))
    write(spark.range(10).where("id > 20").selectExpr("string(id) AS identifier"))
    assert everything(queue) == []


class FailingOnce(PushWriter):
    """Stages and commits a partition, and fails at the first try of every Spark task."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedAttempt:
        done = super().write(iterator)
        if task_context().attemptNumber() == 0:
            raise RuntimeError("this try is lost after its staging was committed")
        return done


class CommittingTwice(PushWriter):
    """Commits twice, as if the first answer had been lost."""

    def commit(self, messages: Any) -> None:
        super().commit(messages)
        super().commit(messages)


@pytest.mark.parametrize("kind", [FailingOnce, CommittingTwice])
def test_each_row_is_pushed_once_although_spark_repeats_tasks(
    spark: SparkSession, dsn: str, queue: TaskQueue, conn: psycopg.Connection[Any], kind: type[PushWriter]
) -> None:
    connection_info = ConnectionInfo.resolve(dsn, executors_may_override=False)

    class TryingTwice(TaskQDataSource):
        @classmethod
        def name(cls) -> str:
            return "taskq_twice"

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002
            return kind.open(PushOptions.parse(self.options), schema, connection_info)

    spark.dataSource.register(TryingTwice)
    frame = spark.range(0, 1_000, 1, 4).selectExpr("string(id) AS identifier")
    frame.write.format("taskq_twice").mode("append").options(mode="push", topic="work").save()
    assert [task.identifier for task in everything(queue)] == [str(number) for number in range(1_000)]
    assert staged(conn) == 0


def test_a_numbered_batch_is_pushed_once(spark: SparkSession, write: Push, queue: TaskQueue) -> None:
    frame = spark.range(10).selectExpr("string(id) AS identifier")
    for batch in ("0", "1", "1", "0", "2"):
        write(frame, stream="nightly", batch=batch)
    write(frame, stream="another", batch="0")
    assert len(everything(queue)) == 40


def test_a_failed_commit_does_not_store_its_batch_number(spark: SparkSession, write: Push, queue: TaskQueue) -> None:
    with pytest.raises(PySparkException):
        write(spark.range(10).selectExpr("' ' AS identifier"), stream="nightly", batch="0")
    write(spark.range(10).selectExpr("string(id) AS identifier"), stream="nightly", batch="0")
    assert len(everything(queue)) == 10


def test_rows_lost_in_a_server_crash_are_detected(dsn: str, queue: TaskQueue) -> None:
    options = PushOptions.parse({"mode": "push", "topic": "work"})
    with pytest.raises(Exception, match="has 0 of the 5 tasks that part 0 reported: run the job again"):
        push_stage(ConnectionInfo.resolve(dsn), options, str(uuid4()), [StagedAttempt(0, 1, 5)], None, None)
    assert everything(queue) == []


def test_a_stage_that_is_pruned_during_its_push_pushes_nothing(
    dsn: str, conn: psycopg.Connection[Any], queue: TaskQueue
) -> None:
    """Prunes as expire() does after a day, when the first chunk has been pushed."""
    stage = uuid4()
    prune = "IF NEW.identifier = '0' THEN DELETE FROM taskq.staged_task; END IF;"
    conn.execute(
        "INSERT INTO taskq.staged_task (stage, part, attempt, place, identifier)"
        " SELECT %s, 0, 1, g, g::text FROM generate_series(0, 19999) g",
        (stage,),
    )
    conn.commit()
    options = PushOptions.parse({"mode": "push", "topic": "work"})
    removed = pytest.raises(TaskQueueError, match="was removed while it was pushed: run the job again")
    with interrupted(conn, "push", prune), removed:
        push_stage(ConnectionInfo.resolve(dsn), options, str(stage), [StagedAttempt(0, 1, 20_000)], None, None)
    assert everything(queue) == []


def test_the_staged_tasks_of_dead_drivers_are_pruned_after_a_day(
    conn: psycopg.Connection[Any], queue: TaskQueue
) -> None:
    fresh, old = str(uuid4()), str(uuid4())
    ghost = queue.register("ghost")
    held = conn.execute("SELECT taskq.open_stage('ghost', %s)::text", (ghost.fence,)).fetchall()[0][0]
    for stage, age in ((fresh, "23 hours"), (old, "25 hours"), (held, "25 hours")):
        conn.execute(
            "INSERT INTO taskq.staged_task (stage, part, attempt, place, identifier, staged)"
            " SELECT %s, 0, 1, g, 'x', now() - %s::interval FROM generate_series(0, 2) g",
            (stage, age),
        )
    queue.expire()
    left = "SELECT DISTINCT stage::text FROM taskq.staged_task"
    assert {stage for (stage,) in conn.execute(left).fetchall()} == {fresh, held}
    queue.release(ghost)
    queue.expire()
    assert conn.execute(left).fetchall() == [(fresh,)]


@pytest.mark.promise("A role may call the functions of its kind, and no others")
def test_a_producer_may_push_from_spark_and_read_nothing(conn: psycopg.Connection[Any], queue: TaskQueue) -> None:
    name = "taskq_spark_producer"
    conn.execute(f"DROP ROLE IF EXISTS {name}".encode())
    conn.execute(f"CREATE ROLE {name}".encode())
    try:
        conn.execute("SELECT taskq.grant_access(%s, 'producer')", (name,))
        conn.execute(f"SET ROLE {name}".encode())
        stage = conn.execute("SELECT taskq.open_push()").fetchall()[0][0]
        batch = pa.record_batch({"identifier": pa.array(["a", "b"])})
        with conn.cursor().copy(COPY_TASKS) as copy:
            copy.write(SIGNATURE)
            copy.write(memoryview(encode_tasks(batch, stage.bytes, 0, 1, 0)))
            copy.write(TRAILER)
        conn.execute("SELECT taskq.check_push(%s)", (stage,))
        pushing = "SELECT taskq.push_staged(%s, 'work', 'APPEND', ARRAY[0], ARRAY[1]::bigint[], ARRAY[2]::bigint[])"
        assert conn.execute("SELECT taskq.begin_stream_batch('a stream', 0)").fetchall() == [(True,)]
        assert conn.execute(pushing, (stage,)).fetchall() == [(2,)]
        conn.execute("SELECT taskq.abandon_push(%s)", (stage,))
        for forbidden in ("SELECT * FROM taskq.staged_task", "SELECT taskq.log_end('work', 0, 1)"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(forbidden.encode())
    finally:
        conn.execute("RESET ROLE")
        conn.execute("SELECT taskq.revoke_access(%s)", (name,))
        conn.execute(f"DROP ROLE {name}".encode())
    assert [task.identifier for task in everything(queue)] == ["a", "b"]


def test_an_attempt_that_ends_after_its_job_leaves_nothing(dsn: str, conn: psycopg.Connection[Any]) -> None:
    options, connection_info = PushOptions.parse({"mode": "push", "topic": "work"}), ConnectionInfo.resolve(dsn)
    stage = conn.execute("SELECT taskq.open_push()::text").fetchall()[0][0]
    PushWriter(options, stage, connection_info).abort([])
    batch = pa.record_batch({"identifier": pa.array(["late"])})
    check = ("SELECT taskq.check_push(%s::uuid)", (stage,))
    with pytest.raises(TaskQueueError, match="was committed or abandoned"):
        stage_rows(
            connection_info,
            COPY_TASKS,
            [batch],
            lambda each, first: encode_tasks(each, UUID(stage).bytes, 0, 1, first),
            check,
        )
    assert staged(conn) == 0
