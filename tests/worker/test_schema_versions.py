"""Workers, consumers, drains and commands on a schema of another release."""

import re
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from airflow_provider_taskq.consumer import Consumer, ConsumerGroup
from airflow_provider_taskq.queue import Condition, SchemaMismatch, State, TaskQueue, connect
from airflow_provider_taskq.worker import Worker
from tests.cli.conftest import Run, run

__all__ = ["run"]  # a fixture that pytest finds here

LOST = "DROP FUNCTION taskq.browse_topics, taskq.join_group"
OLDER = (
    f"UPDATE taskq_internal.migration SET checksum = 'old' WHERE number = 0; {LOST}",
    "the schema taskq in this database is older: .*; run ",
)
NEWER = (
    f"UPDATE taskq_internal.migration SET name = 'functions 99', checksum = 'new' WHERE number = 0; {LOST}",
    r"the schema taskq in this database is newer \(functions of release 99\) than this package .*: upgrade the package",
)


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
    change, sentence = OLDER
    with connect(own_dsn, autocommit=True) as conn:
        TaskQueue(conn).create_topic("work")
        conn.execute(change.encode())
    with pytest.raises(SchemaMismatch, match=f"^{sentence}"):
        start(own_dsn)


def test_a_worker_that_restarts_during_an_upgrade_works_on_the_newer_schema(
    own_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    change, sentence = NEWER
    with connect(own_dsn, autocommit=True) as conn:
        queue = TaskQueue(conn)
        queue.create_topic("work")
        queue.push("work", ["a"])
        conn.execute(change.encode())
        handled = threading.Event()
        worker = Worker(own_dsn, "work", lambda _: handled.set())
        worker.start()
        assert handled.wait(60)
        worker.stop()
        assert [task.state for task in queue.page("work")] == [State.SUCCEEDED]
    assert [record for record in caplog.records if re.match(sentence, record.getMessage())]


@pytest.mark.parametrize(("change", "sentence"), [OLDER, NEWER], ids=["older", "newer"])
def test_a_command_names_the_difference_instead_of_the_function_that_is_missing(
    own_dsn: str, run: Run, monkeypatch: pytest.MonkeyPatch, change: str, sentence: str
) -> None:
    with connect(own_dsn, autocommit=True) as conn:
        conn.execute(change.encode())
    monkeypatch.setenv("TASKQ_DSN", own_dsn)
    result = run("topics", code=1)
    assert "does not exist" not in result.stderr
    assert re.search(sentence, " ".join(result.stderr.split())), result.stderr
