"""The drain as a program, and what becomes of its tasks when it is terminated."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from airflow_provider_taskq.queue import TaskQueue
from airflow_provider_taskq.spark import application, application_path, drain
from airflow_provider_taskq.spark.session import describe_error
from tests.spark.conftest import Connection, Push, check_decided_once, states, wait_until
from tests.spark.programs.transforms import wait_for_gate

pytestmark = pytest.mark.promise("A drain claims round by round within its limits, and releases what it did not begin")


MODULE = [sys.executable, "-m", "airflow_provider_taskq.spark.drain"]
SECRET = "postgresql://absent:sesame@"


@pytest.fixture
def _quiet() -> Iterator[None]:
    """Takes back the handler and the level that the program gives its logger."""
    handlers, level = [*application.logger.handlers], application.logger.level
    yield
    application.logger.handlers[:] = handlers
    application.logger.setLevel(level)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"transform": "transforms"}, "--transform must be package.module:function, not 'transforms'"),
        ({"transform": "no_such.module:function"}, "there is no module 'no_such' on the driver's Python path"),
        ({"transform": "transforms:absent"}, "module transforms has no function 'absent'"),
        ({"transform": "transforms:NOTHING"}, "module transforms has no function 'NOTHING'"),
        ({"topic": "nowhere"}, "topic 'nowhere' is not known"),
        ({"dsn": ""}, "no database is named: set TASKQ_DSN"),
        ({"dsn": f"{SECRET}127.0.0.1:1/nowhere"}, "cannot connect to the queue's database"),
        ({"dsn": f"{SECRET}[h/d"}, "the DSN of the queue's database is malformed"),
        ({"dsn": "empty"}, "the schema taskq"),
        ({"option": "no-equals-sign"}, "--option must be key=value, not 'no-equals-sign'"),
    ],
)
@pytest.mark.usefixtures("queue", "_quiet")
def test_invalid_arguments_are_reported_in_one_line(
    dsn: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, str],
    words: str,
) -> None:
    given = {"topic": "work", "transform": "transforms:succeed", "option": "note=a", "dsn": dsn, **change}
    database = request.getfixturevalue("empty_dsn") if given["dsn"] == "empty" else given["dsn"]
    monkeypatch.setenv("TASKQ_DSN", database)
    monkeypatch.syspath_prepend(Path(__file__).parent / "programs")
    arguments = [word for name in ("topic", "transform", "option") for word in (f"--{name}", given[name])]
    assert application.main([*arguments, "--owner", "program"]) == 1
    output = "".join(capsys.readouterr())
    assert output.startswith(f"drain of topic {given['topic']} failed: ")
    assert words in output
    assert len(output.strip().splitlines()) == 1
    assert "sesame" not in output


TRACE = 'org.apache.spark.SparkException: Job aborted\nTraceback:\n  File "rules.py", line 1\nRuntimeError: stumbled\n'
CALL = "An error occurred while calling o83.save.\n: org.apache.spark.SparkException: "
ABORTED = f"{CALL}Job aborted due to stage failure: "
LOST = "Lost task 0.1 in stage 3.0 (TID 1) (10.0.0.7 executor 2): "
LAST = f"Task 0 in stage 3.0 failed 2 times, most recent failure: {LOST}"
FRAMES = "\n\tat org.apache.spark.X.y(X.scala:1)\nCaused by: java.io.EOFException: x\n"


@pytest.mark.promise("An error is one sentence that names the object and the remedy")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("stumbled", "RuntimeError: stumbled"),
        (TRACE, "RuntimeError: stumbled"),
        (f"{ABORTED}{LAST}org.apache.spark.SparkException: Python worker exited", f"{LOST}Python worker exited"),
        (
            f"{ABORTED}{LAST}ExecutorLostFailure (executor 2) Reason: 137",
            f"{LOST}ExecutorLostFailure (executor 2) Reason: 137",
        ),
        (f"{CALL}Job 3 cancelled", "Job 3 cancelled"),
        (f"(org.apache.spark.SparkException) Job aborted: {LAST}Python worker exited", f"{LOST}Python worker exited"),
    ],
    ids=["error", "trace", "worker", "executor", "job", "Connect"],
)
def test_the_cause_of_a_failed_drain_is_reported_in_one_line(text: str, words: str) -> None:
    assert describe_error(RuntimeError(text)) == words
    assert describe_error(RuntimeError(text + FRAMES)) == words


@pytest.mark.promise("An error is one sentence that names the object and the remedy")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("topic", "words"),
    [("nowhere", "topic 'nowhere' is not known"), ("work", "Spark did not start: it needs Java 17 or later")],
)
@pytest.mark.usefixtures("queue")
def test_a_missing_java_is_reported_after_invalid_arguments(
    dsn: str, python_environment: Mapping[str, str], topic: str, words: str
) -> None:
    environment = {**python_environment, "TASKQ_DSN": dsn, "JAVA_HOME": "/nowhere"}
    command = [*MODULE, "--topic", topic, "--owner", "program", "--transform", "transforms:succeed"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"drain of topic {topic} failed: {words}")


@pytest.mark.slow
@pytest.mark.own_database
def test_spark_submit_runs_the_program_which_drains_in_rounds_and_logs_its_progress(
    dsn: str, queue: TaskQueue, push: Push, python_environment: Mapping[str, str], tmp_path: Path
) -> None:
    push(25)
    secret = tmp_path / "dsn"
    secret.write_text(dsn)
    command = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]", application_path()]
    command += ["--topic", "work", "--owner", "program", "--each", "transforms:count_letters", "--option", "note=hello"]
    command += ["--rounds", "9", "--size", "12", "--partitions", "2", "--budget", "23"]
    command += ["--condition", "SINGULAR_BY_IDENTIFIER"]
    environment = {**python_environment, "TASKQ_DSN_FILE": str(secret)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert states(queue) == {"READY": 2, "SUCCEEDED": 23}
    assert queue.latest("work", ["item-3"])["item-3"].output == {"note": "hello", "letters": 6}
    for line in (
        "tasks claimed: topic=work claimed=12 resumed=0",
        "round=2 done=23 claimed=23",
        '"rounds": 2, "stop_reason": "BUDGET"',
    ):
        assert line in done.stdout


@pytest.mark.promise("the Spark driver is killed")
@pytest.mark.faults
@pytest.mark.own_database
def test_the_next_drain_continues_the_work_of_a_terminated_driver(
    spark: SparkSession,
    dsn: str,
    queue: TaskQueue,
    conn: Connection,
    push: Push,
    python_environment: Mapping[str, str],
    tmp_path: Path,
) -> None:
    push(100)
    gate = tmp_path / "gate"
    environment = {**python_environment, "TASKQ_DSN": make_conninfo(dsn, application_name="the driver")}
    command = [*MODULE, "--topic", "work", "--owner", "program", "--transform", "transforms:wait_for_gate"]
    command += ["--option", f"gate={gate}", "--partitions", "4"]
    with subprocess.Popen(command, env=environment, start_new_session=True, stdout=subprocess.PIPE) as first:
        try:
            wait_until(conn, "SELECT count(*) > 0 FROM taskq.staged", first)
        except BaseException:
            os.killpg(first.pid, signal.SIGKILL)
            raise
        first.send_signal(signal.SIGTERM)
        assert first.wait(600) != 0
    gate.touch()
    assert states(queue) == {"READY": 100}
    second = drain(spark, "work", "program", lambda tasks: wait_for_gate(tasks, {"gate": str(gate)}), dsn=dsn)
    assert (second.resumed, second.done) == (0, 100)
    check_decided_once(queue, 100)
