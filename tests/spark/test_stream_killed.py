"""writeStream with mode=complete, its driver killed with -9 after a commit."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from airflow_provider_taskq.queue import Owner, TaskQueue, connect
from tests.internals import hold_tasks, stream_batches
from tests.spark.conftest import Connection, Held, staged, states, wait_until
from tests.spark.programs.decided_stream import decide

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.own_database,
    pytest.mark.promise("A stream never passes an open push, and a replayed batch has its effect once"),
    pytest.mark.promise("the Spark driver is killed"),
]

PROGRAM = Path(__file__).parent / "programs" / "decided_stream.py"
WAITING = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{}%'"


def test_a_stream_of_decisions_killed_after_a_commit_ends_each_task_once(
    spark: SparkSession,
    dsn: str,
    queue: TaskQueue,
    conn: Connection,
    owner: Owner,
    held: Held,
    python_environment: Mapping[str, str],
    tmp_path: Path,
) -> None:
    options = held(10)
    where = (str(tmp_path / "checkpoint"), options["owner"], options["fence"])
    (tmp_path / "dsn").write_text(make_conninfo(dsn, application_name="the driver"))
    command = [sys.executable, str(PROGRAM), str(tmp_path / "dsn"), *where]
    with connect(dsn) as task, connect(dsn) as stage:
        hold_a_task_of_the_second_batch(task)
        with killed_at_the_end(command, python_environment) as driver:
            wait_until(conn, WAITING.format("complete_staged"), driver)
            assert states(queue) == {"ACTIVE": 5, "SUCCEEDED": 2, "FILTERED": 3}
            stage.execute("SELECT FROM taskq.staged FOR UPDATE")  # what the driver forgets after its commit
            task.rollback()
            wait_until(conn, WAITING.format("abandon_stage"), driver)
    wait_until(conn, "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'the driver'")
    assert states(queue) == {"SUCCEEDED": 5, "FILTERED": 5}
    assert noted_batches(tmp_path / "checkpoint") == ["0"]
    held(2)
    decide(spark, dsn, *where)  # a task that is ended already would be refused
    assert noted_batches(tmp_path / "checkpoint") == ["0", "1", "2"]
    assert states(queue) == {"SUCCEEDED": 6, "FILTERED": 6}
    assert stream_batches(conn) == [2]
    queue.release(owner)
    queue.expire()  # deletes what the killed driver has staged
    assert staged(conn) == 0


def noted_batches(checkpoint: Path) -> list[str]:
    """The batches that Spark has noted as done."""
    return sorted(path.name for path in (checkpoint / "commits").iterdir() if path.name.isdigit())


def hold_a_task_of_the_second_batch(conn: Connection) -> None:
    """Locks the seventh task, so that its completion waits."""
    hold_tasks(conn, TaskQueue(conn).page("work", size=1)[0].sequence + 6)


@contextmanager
def killed_at_the_end(command: list[str], environment: Mapping[str, str]) -> Iterator[psutil.Popen]:
    """A driver that is killed with its JVM and its workers, which would outlive it by a moment and end the commit."""
    with psutil.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            killed = [process, *process.children(recursive=True)]
            for each in killed:
                with suppress(psutil.NoSuchProcess):  # ended with its parent
                    each.kill()
            assert psutil.wait_procs(killed, timeout=60)[1] == []
