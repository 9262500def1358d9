"""Streams whose driver is killed with -9: after a commit, and again and again.

The second runs for TASKQ_SOAK_SECONDS seconds, and kills the driver every half a minute, at least twice.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from airflow_provider_taskq.queue import NewTask, Owner, TaskQueue, connect
from tests.internals import hold_tasks, stream_batches
from tests.spark.conftest import Connection, Held, staged, states, wait_until
from tests.spark.programs.stream import decide

pytestmark = [
    pytest.mark.slow,
    pytest.mark.chaos,
    pytest.mark.own_database,
    pytest.mark.promise("A stream never passes an open push, and a replayed batch has its effect once"),
]

PROGRAM = Path(__file__).parent / "programs" / "stream.py"
WAITING = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{}%'"


@pytest.mark.promise("the Spark driver is killed")
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
            wait_until(conn, WAITING.format("commit_stage"), driver)
            assert states(queue) == {"ACTIVE": 5, "SUCCEEDED": 2, "FILTERED": 3}
            stage.execute("SELECT FROM taskq.staged FOR UPDATE")  # what the driver forgets after its commit
            task.rollback()
            wait_until(conn, WAITING.format("close_stage"), driver)
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


# A stream copies a topic at 2,000 tasks a second, while its driver is killed repeatedly


SECONDS = float(os.environ.get("TASKQ_SOAK_SECONDS", "20"))
KILLS = max(2, int(SECONDS / 30))
RATE = 2_000
EVERY = 0.1  # seconds between two pushes
PATIENCE = max(600.0, SECONDS)


COPIED = "SELECT coalesce(max(sequence), 0) FROM taskq.task_info WHERE topic = 'copies'"
COMMITTING = (
    "SELECT count(*) > 0 FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'SELECT taskq.commit_stage%'"
)
BY_TOPIC = "SELECT identifier, sequence, payload::text AS payload FROM taskq.task_info WHERE topic = '{}'"
TASK = "identifier, payload"
DIFFERENCE = (  # both counts; what is missing, what is double, and what does not follow the number before it
    f"WITH work AS ({BY_TOPIC.format('work')}), copies AS ({BY_TOPIC.format('copies')})"
    " SELECT (SELECT count(*) FROM work), (SELECT count(*) FROM copies),"
    f" (SELECT count(*) FROM (SELECT {TASK} FROM work EXCEPT ALL SELECT {TASK} FROM copies) gap),"
    f" (SELECT count(*) FROM (SELECT {TASK} FROM copies EXCEPT ALL SELECT {TASK} FROM work) twice),"
    " (SELECT count(*) FROM (SELECT identifier::int - lag(identifier::int) OVER (ORDER BY sequence) AS step"
    "   FROM copies) o WHERE step <> 1)"
)


class Pusher:
    """Pushes numbered tasks at a steady rate, from a thread."""

    def __init__(self, dsn: str) -> None:
        self.pushed = 0
        self.late = 0.0
        self._dsn = dsn
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._push)

    def __enter__(self) -> "Pusher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _push(self) -> None:
        """Pushes late tasks at once, so that the average rate stays the same."""
        with connect(self._dsn, autocommit=True) as conn:
            queue, began = TaskQueue(conn), time.monotonic()
            while not self._stopped.wait(max(0.0, began + self.pushed / RATE - time.monotonic())):
                chunk = range(self.pushed, self.pushed + int(RATE * EVERY))
                queue.push("work", [NewTask(str(number), {"number": number}) for number in chunk])
                self.pushed += len(chunk)
                self.late = max(self.late, time.monotonic() - began - self.pushed / RATE)


@contextmanager
def driver(dsn_file: Path, environment: Mapping[str, str], *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A streaming driver in its own process group, which is killed at the end."""
    command = [sys.executable, str(PROGRAM), str(dsn_file), str(dsn_file.with_name("checkpoint")), *arguments]
    with (
        dsn_file.with_name("log").open("ab") as log,
        subprocess.Popen(command, env=environment, start_new_session=True, stdout=log, stderr=log) as process,
    ):
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):  # nothing is left of it
                os.killpg(process.pid, signal.SIGKILL)


def number(conn: psycopg.Connection[Any], query: str) -> int:
    return int(conn.execute(query.encode()).fetchall()[0][0])


@pytest.mark.timeout(SECONDS + 3 * PATIENCE)
def test_a_stream_that_is_killed_repeatedly_pushes_every_task_once(
    dsn: str, queue: TaskQueue, conn: psycopg.Connection[Any], python_environment: Mapping[str, str], tmp_path: Path
) -> None:
    queue.create_topic("copies")
    dsn_file = tmp_path / "dsn"
    dsn_file.write_text(dsn)
    chance, began = random.Random(), time.monotonic()  # noqa: S311 -- when to kill
    with Pusher(dsn) as pusher:
        kills = 0
        while kills < 2 or (kills < KILLS and time.monotonic() < began + SECONDS):  # fewer where starting takes long
            with driver(dsn_file, python_environment) as process:
                wait_until(conn, f"SELECT ({COPIED}) > {number(conn, COPIED)}", process)  # it works: a batch is done
                left = began + SECONDS * (kills + 1) / KILLS - time.monotonic()
                time.sleep(max(left, chance.uniform(0, 1)))
                if kills % 2:
                    wait_until(conn, COMMITTING, process)  # in the middle of a commit
            kills += 1
    with driver(dsn_file, python_environment, "last") as process:
        assert process.wait(PATIENCE) == 0, dsn_file.with_name("log").read_text()[-2_000:]
    pushed, copied, gaps, doubles, out_of_order = conn.execute(DIFFERENCE.encode()).fetchall()[0]
    print(f"{pushed:,} tasks in {time.monotonic() - began:.0f} s, {kills} kills, at most {pusher.late:.1f} s behind")  # noqa: T201
    assert (pushed, copied, gaps, doubles, out_of_order) == (pusher.pushed, pusher.pushed, 0, 0, 0)
    assert pushed >= RATE * SECONDS / 2
    assert len(stream_batches(conn)) == 1
