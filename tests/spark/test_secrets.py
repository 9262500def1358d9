"""Spark shows neither the database's password nor a payload."""

import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_taskq.queue import NewTask, TaskQueue
from airflow_provider_taskq.spark import drain
from airflow_provider_taskq.spark.driver_commit import DriverActions, DriverCommit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

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
        yield make_conninfo(dsn, user="taskq_marked", password=PASSWORD)
        admin.execute(sql.SQL("DROP ROLE {}").format(role))


def everything_shown(spark: SparkSession) -> Iterator[tuple[str, str]]:
    """The pages of Spark's UI and the process table, which every user can read."""
    context = spark.sparkContext
    for page in PAGES:
        url = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/{page}"
        with urllib.request.urlopen(url) as answer:  # noqa: S310
            yield page, answer.read().decode()
    processes = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True)  # noqa: S607
    yield "process arguments", processes.stdout


@pytest.mark.usefixtures("queue")
def test_spark_shows_neither_the_password_nor_a_payload(
    spark: SparkSession, spark_log: Path, marked_dsn: str, queue: TaskQueue, capfd: pytest.CaptureFixture[str]
) -> None:
    queue.push("work", [NewTask(f"item-{number}", {"secret": MARK}) for number in range(10)])
    seen: list[tuple[str, str]] = []

    def decide(tasks: DataFrame) -> DataFrame:
        decisions = tasks.selectExpr("sequence", "'SUCCESS' AS result", "payload AS message")
        decisions.explain(extended=True)
        seen.extend(everything_shown(spark))
        return decisions

    spark.sparkContext.setLogLevel("DEBUG")
    try:
        assert drain(spark, "work", "me", decide, dsn=marked_dsn).done == 10
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()  # by which the interface hears of jobs
        seen.extend(everything_shown(spark))
    finally:
        spark.sparkContext.setLogLevel("OFF")
    seen += [("output", "".join(capfd.readouterr())), ("logs", spark_log.read_text())]
    shown = dict(seen)
    assert "taskq: decide 10 tasks of topic work for me" in shown["jobs"]
    assert "taskq_drain" in shown["output"]
    assert "DEBUG" in shown["logs"]
    assert [where for where, text in seen if PASSWORD in text or MARK in text] == []


def test_an_error_shows_neither_password_nor_payload(
    spark: SparkSession, spark_log: Path, marked_dsn: str, queue: TaskQueue, capfd: pytest.CaptureFixture[str]
) -> None:
    queue.push("work", [NewTask("item", MARK)])
    broken: Callable[[DataFrame], DataFrame] = lambda tasks: tasks.selectExpr(  # noqa: E731
        "sequence", "'SUCCESS' AS result", "concat('{', payload) AS message"
    )
    spark.sparkContext.setLogLevel("INFO")
    try:
        with pytest.raises(Exception, match="is not JSON") as failed:
            drain(spark, "work", "me", broken, dsn=marked_dsn)
    finally:
        spark.sparkContext.setLogLevel("OFF")
    cause = failed.value.__cause__
    assert isinstance(cause, PySparkException)
    everything = "".join(capfd.readouterr()) + spark_log.read_text() + str(cause) + str(failed.value)
    assert "InvalidTask" in everything
    assert MARK not in everything
    assert PASSWORD not in everything


def test_a_function_that_fails_after_the_commit_is_logged_without_its_arguments(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def deliver(_: str) -> None:
        raise OSError("no mailbox")

    no_writer: Any = None
    actions = DriverActions("deliveries", {}, after_commit_calls=(partial(deliver, PASSWORD),))
    DriverCommit([actions]).after_commit(no_writer)
    assert "after_commit failed" in caplog.text
    assert "deliver" in caplog.text
    assert PASSWORD not in caplog.text
