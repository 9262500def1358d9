"""Spark shows neither the database's password nor a payload."""

import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_taskq.queue import NewTask, Task, TaskQueue
from airflow_provider_taskq.spark import drain
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.data_source import register_source
from airflow_provider_taskq.worker import Batch, Composite

pytestmark = pytest.mark.promise("Payloads and passwords are in no log, error, metric, argument, XCom or plan")


PASSWORD = "opensesame4711"
MARK = "markedpayload0815"
PAGES = ("environment", "sql?details=true&planDescription=true", "jobs", "stages?details=true", "executors")


@pytest.fixture
def marked_dsn(dsn: str) -> Iterator[str]:
    """The test's database through a role whose password can be searched for."""
    role = sql.Identifier("taskq_marked")
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(role))
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN SUPERUSER PASSWORD {}").format(role, PASSWORD))
        # The server puts the parameters of statements into its errors.
        telling = "-c log_parameter_max_length_on_error=-1"
        yield make_conninfo(dsn, user="taskq_marked", password=PASSWORD, options=telling)
        admin.execute(sql.SQL("DROP ROLE {}").format(role))


@pytest.fixture
def event_log(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Writes Spark's event log, as spark.eventLog.enabled does, and returns its text so far."""
    context, folder = spark.sparkContext._jsc.sc(), tmp_path / "events"
    folder.mkdir()
    jvm: Any = spark._jvm
    settings = context.getConf().set("spark.eventLog.compress", "false").set("spark.eventLog.rolling.enabled", "false")
    nothing = jvm.scala.Option.apply(None)
    uri = jvm.java.net.URI(folder.as_uri())
    listener = jvm.org.apache.spark.scheduler.EventLoggingListener(context.applicationId(), nothing, uri, settings)
    listener.start()
    context.listenerBus().addToEventLogQueue(listener)

    def written() -> str:
        context.listenerBus().waitUntilEmpty()
        return "".join(path.read_text() for path in folder.rglob("*") if path.is_file() and path.suffix != ".crc")

    yield written
    context.listenerBus().removeListener(listener)
    listener.stop()


def everything_shown(spark: SparkSession) -> Iterator[tuple[str, str]]:
    """The pages of Spark's UI and the process table, which every user can read."""
    context = spark.sparkContext
    for page in PAGES:
        url = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/{page}"
        with urllib.request.urlopen(url) as answer:  # noqa: S310
            yield page, answer.read().decode()
    processes = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True)  # noqa: S607
    yield "process arguments", processes.stdout


@pytest.fixture
def checked(
    spark: SparkSession, spark_log: Path, event_log: Callable[[], str], capfd: pytest.CaptureFixture[str]
) -> Callable[[str], AbstractContextManager[dict[str, str]]]:
    """Collects what Spark shows of the block at a level of its log, and finds neither password nor payload in it."""

    @contextmanager
    def collected(level: str) -> Iterator[dict[str, str]]:
        seen: dict[str, str] = {}
        spark.sparkContext.setLogLevel(level)
        try:
            yield seen
            seen["events"] = event_log()  # which waits until the interface, too, has heard of the jobs
            seen.update(everything_shown(spark))
        finally:
            spark.sparkContext.setLogLevel("OFF")
        seen |= {"output": "".join(capfd.readouterr()), "logs": spark_log.read_text()}
        assert [where for where, text in seen.items() if PASSWORD in text or MARK in text] == []

    return collected


def test_spark_shows_neither_the_password_nor_a_payload(
    spark: SparkSession, marked_dsn: str, queue: TaskQueue, checked: Callable[[str], Any]
) -> None:
    queue.push("work", [NewTask(f"item-{number}", {"secret": MARK}) for number in range(10)])

    def decide(tasks: DataFrame) -> DataFrame:
        decisions = tasks.selectExpr("sequence", "'SUCCESS' AS result", "payload AS message")
        decisions.explain(extended=True)
        shown.update({f"{page} of the plan": text for page, text in everything_shown(spark)})
        return decisions

    with checked("DEBUG") as shown:
        assert drain(spark, "work", "me", decide, dsn=marked_dsn).done == 10
    for place in ("jobs", "events"):
        assert "taskq: decide 10 tasks of topic work for me" in shown[place]
    assert "taskq_drain" in shown["output"]
    assert "DEBUG" in shown["logs"]


def decide_invalid(spark: SparkSession, dsn: str) -> None:
    """Makes a message that no executor can stage."""
    broken = ("sequence", "'SUCCESS' AS result", "concat('{', payload) AS message")
    drain(spark, "work", "me", lambda tasks: tasks.selectExpr(*broken), dsn=dsn, partitions=1)


def push_invalid(spark: SparkSession, dsn: str) -> None:
    """Pushes a payload that no executor can stage."""
    tasks = spark.createDataFrame([("item", MARK)], "identifier string, payload string")
    source = register_source(spark, ConnectionInfo.resolve(dsn, executors_may_override=False))
    invalid = tasks.selectExpr("identifier", "concat(payload, char(0)) AS payload")
    invalid.write.format(source).mode("append").options(mode="push", topic="work").save()


def push_to_unknown_topic(spark: SparkSession, dsn: str) -> None:
    """Runs a composite whose follow-ups have an unknown topic."""

    def follow(task: Task, batch: Batch) -> None:
        batch.push(task, "nowhere", [NewTask("next", task.payload)])

    drain(spark, "work", "me", Composite("following").with_step(follow), dsn=dsn, partitions=1)


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (decide_invalid, "is not JSON"),
        (push_invalid, "holds a NUL"),
        (push_to_unknown_topic, "topic 'nowhere' is not known"),
    ],
)
def test_a_failed_job_shows_neither_password_nor_payload(
    run: Callable[[SparkSession, str], None],
    reason: str,
    spark: SparkSession,
    marked_dsn: str,
    queue: TaskQueue,
    checked: Callable[[str], Any],
) -> None:
    queue.push("work", [NewTask("item", MARK)])
    with checked("INFO") as shown:
        with pytest.raises(Exception, match=reason) as failed:
            run(spark, marked_dsn)
        shown |= {"error": str(failed.value), "cause": str(failed.value.__cause__)}
    assert reason in shown["events"]


def test_the_checkpoint_of_a_stream_has_neither_password_nor_payload(
    spark: SparkSession, marked_dsn: str, queue: TaskQueue, event_log: Callable[[], str], tmp_path: Path
) -> None:
    queue.create_topic("copies")
    queue.push("work", [NewTask(f"item-{number}", {"secret": MARK}) for number in range(10)])
    source = register_source(spark, ConnectionInfo.resolve(marked_dsn, executors_may_override=False))
    log = spark.readStream.format(source).options(mode="log", topic="work", partitions="2").load()
    copies = log.select("identifier", "payload").writeStream.format(source).options(mode="push", topic="copies")
    query = copies.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(180)
    finally:
        query.stop()
    assert [task.payload for task in queue.poll("copies", queue.register("me"), 10)] == [{"secret": MARK}] * 10
    files = {str(path): path.read_bytes() for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()}
    assert any("/offsets/" in name for name in files)
    seen = {**files, "events": event_log().encode()}
    assert b"SparkListenerJobEnd" in seen["events"]
    assert [where for where, data in seen.items() if PASSWORD.encode() in data or MARK.encode() in data] == []
