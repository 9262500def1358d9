"""Workers, consumers, drains and commands on a schema of another release."""

import re
import threading
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from airflow_provider_taskq.consumer import Consumer, ConsumerGroup
from airflow_provider_taskq.queue import Condition, SchemaMismatch, State, TaskQueue, connect
from airflow_provider_taskq.worker import Worker
from tests.cli.conftest import Run, run
from tests.internals import Release, pretend_release

pytestmark = pytest.mark.promise("The package of a release works with the schema of the next one")

__all__ = ["run"]  # a fixture that pytest finds here

OLDER: tuple[Release, str] = ("other functions", "the schema taskq in this database is older: .*; run ")
NEWER: tuple[Release, str] = (
    "newer functions",
    r"the schema taskq in this database is newer \(functions of release 9999\) than this package .*: upgrade the",
)


def change_release(conn: psycopg.Connection, release: Release) -> None:
    """Makes the installation one of another release, which lacks two functions."""
    pretend_release(conn, release)
    conn.execute("DROP FUNCTION taskq.browse_topics, taskq.forget_group CASCADE")


def start_worker(dsn: str) -> None:
    """Starts a worker, and stops it if that succeeds."""
    worker = Worker(dsn, "work", lambda _: None)
    worker.start()
    worker.stop()


def start_consumer(dsn: str) -> None:
    """Starts a consumer."""
    group = ConsumerGroup("group")
    group.on()(lambda _: None)
    Consumer(dsn, group, "work").start()


def open_drain(dsn: str) -> None:
    """Opens the session of a drain, for which Spark is not needed."""
    pytest.importorskip("pyspark")
    from airflow_provider_taskq.spark.connection import ConnectionInfo
    from airflow_provider_taskq.spark.session import DrainSession

    info, lease = ConnectionInfo(dsn), timedelta(minutes=1)
    DrainSession.open(None, info, "work", "drain", lease, Condition.NONE, in_rounds=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("start", [start_worker, start_consumer, open_drain])
def test_a_program_refuses_an_older_schema_at_its_start(own_dsn: str, start: Callable[[str], None]) -> None:
    release, sentence = OLDER
    with connect(own_dsn, autocommit=True) as conn:
        TaskQueue(conn).create_topic("work")
        change_release(conn, release)
    with pytest.raises(SchemaMismatch, match=f"^{sentence}"):
        start(own_dsn)


def test_a_worker_that_restarts_during_an_upgrade_works_on_the_newer_schema(
    own_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    release, sentence = NEWER
    with connect(own_dsn, autocommit=True) as conn:
        queue = TaskQueue(conn)
        queue.create_topic("work")
        queue.push("work", ["a"])
        change_release(conn, release)
        handled = threading.Event()
        worker = Worker(own_dsn, "work", lambda _: handled.set())
        worker.start()
        assert handled.wait(60)
        worker.stop()
        assert [task.state for task in queue.page("work")] == [State.SUCCEEDED]
    assert [record for record in caplog.records if re.match(sentence, record.getMessage())]


@pytest.mark.parametrize(("release", "sentence"), [OLDER, NEWER], ids=["older", "newer"])
def test_a_command_names_the_difference_instead_of_the_function_that_is_missing(
    own_dsn: str, run: Run, monkeypatch: pytest.MonkeyPatch, release: Release, sentence: str
) -> None:
    with connect(own_dsn, autocommit=True) as conn:
        change_release(conn, release)
    monkeypatch.setenv("TASKQ_DSN", own_dsn)
    result = run("topics", code=1)
    assert "does not exist" not in result.stderr
    assert re.search(sentence, " ".join(result.stderr.split())), result.stderr
