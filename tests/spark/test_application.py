"""The drain as a program, and its state in the queue after a kill."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from airflow_provider_taskq.queue import TaskQueue
from airflow_provider_taskq.spark import application_path, drain
from tests.spark.programs.transforms import wait_for_gate

pytestmark = pytest.mark.promise("A drain claims round by round within its limits, and releases what it did not begin")

Push = Callable[[int], list[int]]

MODULE = [sys.executable, "-m", "airflow_provider_taskq.spark.drain"]


def states(queue: TaskQueue) -> dict[str, int]:
    return {state.name: count.count for state, count in queue.count("work")["work"].items()}


def run(
    environment: Mapping[str, str],
    *arguments: str,
    transform: str = "transforms:succeed",
    topic: str = "work",
    program: Sequence[str] = MODULE,
) -> subprocess.CompletedProcess[str]:
    named = ["--transform", transform] if transform else []
    command = [*program, "--topic", topic, "--owner", "program", *named, *arguments]
    return subprocess.run(command, env=dict(environment), capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"transform": "transforms"}, "--transform must be package.module:function, not 'transforms'"),
        ({"transform": "no_such.module:function"}, "there is no module 'no_such' on the driver's Python path"),
        ({"transform": "transforms:absent"}, "module transforms has no function 'absent'"),
        ({"transform": "transforms:NOTHING"}, "module transforms has no function 'NOTHING'"),
        ({"topic": "nowhere"}, "topic 'nowhere' is not known"),
        ({"dsn": None}, "no database is named: set TASKQ_DSN"),
        ({"dsn": "postgresql://absent:sesame@127.0.0.1:1/nowhere"}, "cannot connect to the queue's database"),
        ({"dsn": "postgresql://absent:sesame@[h/d"}, "the DSN of the queue's database is malformed"),
        ({"dsn": "empty"}, "the schema taskq"),
        ({"option": "no-equals-sign"}, "--option must be key=value, not 'no-equals-sign'"),
    ],
)
@pytest.mark.usefixtures("queue")
def test_invalid_arguments_are_reported_before_spark_starts(
    dsn: str,
    request: pytest.FixtureRequest,
    python_environment: Mapping[str, str],
    change: dict[str, str | None],
    words: str,
) -> None:
    database = change.get("dsn", dsn)
    if database == "empty":
        database = request.getfixturevalue("empty_dsn")
    named = {"TASKQ_DSN": database} if database else {}
    done = run(
        {**python_environment, **named, "JAVA_HOME": "/nowhere"},
        *(["--option", option] if (option := change.get("option")) else []),
        transform=change.get("transform") or "transforms:succeed",
        topic=change.get("topic") or "work",
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"drain of topic {change.get('topic') or 'work'} failed: ")
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "sesame" not in done.stderr + done.stdout


@pytest.mark.promise("An error is one sentence that names the object and the remedy")
@pytest.mark.slow
@pytest.mark.usefixtures("queue")
def test_a_missing_java_is_reported(dsn: str, python_environment: Mapping[str, str]) -> None:
    done = run({**python_environment, "TASKQ_DSN": dsn, "JAVA_HOME": "/nowhere"})
    assert done.returncode == 1
    assert "Spark did not start: it needs Java 17 or later" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_spark_submit_runs_the_program_which_drains_in_rounds_and_logs_its_progress(
    dsn: str, queue: TaskQueue, push: Push, python_environment: Mapping[str, str], tmp_path: Path
) -> None:
    push(25)
    secret = tmp_path / "dsn"
    secret.write_text(dsn)
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]", application_path()]
    arguments = ["--each", "transforms:count_letters", "--option", "note=hello", "--rounds", "9", "--size", "10"]
    arguments += ["--condition", "SINGULAR_BY_IDENTIFIER", "--budget", "23", "--deadline", "600"]
    done = run({**python_environment, "TASKQ_DSN_FILE": str(secret)}, *arguments, transform="", program=submit)
    assert done.returncode == 0, done.stderr
    assert states(queue) == {"READY": 2, "SUCCEEDED": 23}
    assert queue.latest("work", ["item-3"])["item-3"].output == {"note": "hello", "letters": 6}
    for line in (
        "tasks claimed: topic=work claimed=10 resumed=0",
        "round=3 done=23 claimed=23",
        '"rounds": 3, "stop_reason": "BUDGET"',
    ):
        assert line in done.stdout


@pytest.mark.promise("An error is one sentence that names the object and the remedy")
@pytest.mark.slow
def test_an_error_of_the_transform_is_reported_in_one_line(
    dsn: str, queue: TaskQueue, push: Push, python_environment: Mapping[str, str]
) -> None:
    push(5)
    done = run({**python_environment, "TASKQ_DSN": dsn}, transform="transforms:stumble")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "drain of topic work failed: RuntimeError: stumbled over 0 options and 10 columns"
    )
    assert states(queue) == {"READY": 5}


def until_staged(conn: psycopg.Connection[Any], process: subprocess.Popen[bytes]) -> None:
    """Waits until a driver's executors have staged decisions; on a loaded machine its start takes minutes."""
    deadline = time.monotonic() + 600
    while conn.execute("SELECT count(*) FROM taskq.staged").fetchall() == [(0,)]:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)


@pytest.mark.promise("the Spark driver is killed")
@pytest.mark.slow
def test_the_next_drain_continues_the_work_of_a_terminated_driver(
    spark: SparkSession,
    dsn: str,
    queue: TaskQueue,
    conn: psycopg.Connection[Any],
    push: Push,
    python_environment: Mapping[str, str],
    tmp_path: Path,
) -> None:
    push(100)
    gate = tmp_path / "gate"
    environment = {**python_environment, "TASKQ_DSN": make_conninfo(dsn, application_name="the driver")}
    arguments = ["--topic", "work", "--owner", "program", "--transform", "transforms:wait_for_gate"]
    command = [*MODULE, *arguments, "--option", f"gate={gate}", "--partitions", "4"]
    with subprocess.Popen(command, env=environment, start_new_session=True, stdout=subprocess.PIPE) as first:
        try:
            until_staged(conn, first)
        except BaseException:
            os.killpg(first.pid, signal.SIGKILL)
            raise
        first.send_signal(signal.SIGTERM)
        assert first.wait(600) != 0
    gate.touch()
    assert states(queue) == {"READY": 100}
    second = drain(spark, "work", "program", lambda tasks: wait_for_gate(tasks, {"gate": str(gate)}), dsn=dsn)
    assert (second.resumed, second.done) == (0, 100)
    assert states(queue) == {"SUCCEEDED": 100}
    tries = "SELECT DISTINCT attempt, crashes FROM taskq.tasks WHERE topic = 'work'"
    assert conn.execute(tries).fetchall() == [(1, 0)]
    assert conn.execute("SELECT count(*) FROM taskq.staged").fetchall() == [(0,)]


@pytest.mark.promise("a Spark task runs twice, or an executor is killed")
@pytest.mark.slow
def test_speculative_executors_without_a_database_in_their_environment_decide_once(
    dsn: str, queue: TaskQueue, push: Push, python_environment: Mapping[str, str], tmp_path: Path
) -> None:
    push(100)
    queue.create_topic("next")
    queue.create_topic("pushed")
    (tmp_path / "dsn").write_text(dsn)
    program = Path(__file__).parent / "programs" / "speculation.py"
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "dsn")],
        env=dict(python_environment),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "done=100" in done.stdout
    assert states(queue) == {"SUCCEEDED": 100}
    following = [task.identifier for task in queue.page("next", size=1_000)]
    assert sorted(following) == sorted(f"item-{number}" for number in range(100))
    assert [task.identifier for task in queue.page("pushed", size=2_000)] == [str(number) for number in range(1_000)]
    assert queue.conn.execute(
        "SELECT DISTINCT attempt, crashes FROM taskq.tasks WHERE result IS NOT NULL"
    ).fetchall() == [(1, 0)]
    for table in ("staged", "staged_task", "staged_junction"):
        assert queue.conn.execute(f"SELECT count(*) FROM taskq.{table}").fetchall() == [(0,)]
    assert queue.owners() == []
