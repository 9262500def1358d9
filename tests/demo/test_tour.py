"""The demo as a user runs it, except for a kill of its drain."""

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psutil
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from airflow_provider_taskq.queue import State, TaskQueue, TaskQueueError, connect
from demo.flights import TOPIC
from demo.tour import prepare
from tests.demo.expected import expected
from tests.spark.session import SHORT_LIVED

pytestmark = [
    pytest.mark.slow,
    pytest.mark.documents,
    pytest.mark.timeout(1800),
    pytest.mark.promise("The examples, and the code of each page of this site, run as they are written"),
]

SLICE = 4_000


def counts(dsn: str) -> dict[State, int]:
    with connect(dsn) as conn:
        return {state: count.count for state, count in TaskQueue(conn).count(TOPIC).get(TOPIC, {}).items()}


@dataclass(frozen=True)
class Demo:
    """A demo that has ended: its exit code, its output, its database, and its folder for temporary files.

    While it kept running, its processes listened on some addresses; those that did not end with it are left.
    """

    code: int
    output: str
    answers: str  # of the commands that it proposed
    dsn: str
    temporary: Path
    listening: set[str]
    left: list[psutil.Process]


@pytest.fixture(scope="module")
def demo(server_dsn: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """Run the demo, and kill the driver of its drain (-9) when it has claimed: the drain has two more tries."""
    name, temporary = f"taskq_tour_{uuid4().hex[:8]}", tmp_path_factory.mktemp("tour")
    with psycopg.connect(server_dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template)))
        yield _killed_once(make_conninfo(server_dsn, dbname=name), temporary)
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _killed_once(dsn: str, temporary: Path) -> Demo:
    environ = {**os.environ, "TASKQ_DSN": dsn, "TMPDIR": str(temporary), **SHORT_LIVED}
    command = [sys.executable, "-m", "demo", "--flights", str(SLICE), "--keep"]
    with (
        (temporary / "output").open("w+") as output,
        subprocess.Popen(command, env=environ, stdout=output, stderr=subprocess.STDOUT) as running,
    ):
        try:
            _wait_until_held(dsn, running)
            assert running.poll() is None, (temporary / "output").read_text()
            driver = _driver(running)
            for process in [*driver.children(recursive=True), driver]:
                with contextlib.suppress(psutil.NoSuchProcess):  # a driver ends by itself after its children
                    process.kill()
            answers = _try_proposed(temporary / "output", running)
            processes = psutil.Process(running.pid).children(recursive=True) if answers else []
            listening = {address for process in processes for address in _listens_on(process)}
            running.send_signal(signal.SIGINT)
            code = running.wait(300)
        finally:
            running.terminate()
        output.seek(0)
        left = psutil.wait_procs(processes, 60)[1]
        return Demo(code, output.read(), answers, dsn, temporary, listening, left)


def _try_proposed(output: Path, running: subprocess.Popen[bytes]) -> str:
    """Wait until the demo proposes commands. Run them, and return their output. Return "" if the demo ends instead."""
    deadline = time.monotonic() + 1700
    while "To try next" not in (text := output.read_text()):
        assert time.monotonic() < deadline, text
        if running.poll() is not None:
            return ""
        time.sleep(0.5)  # between two reads of the file
    commands = [line for line in text.partition("To try next")[2].splitlines() if line.startswith("  ")]
    done = subprocess.run(["/bin/sh", "-e", "-c", "\n".join(commands)], capture_output=True, text=True, check=False)
    return f"{done.stdout}{done.stderr}exit code {done.returncode}"


def test_the_demo_decides_every_flight_as_a_plain_count_of_the_files_does(demo: Demo) -> None:
    assert demo.code == 0, demo.output
    assert counts(demo.dsn) == expected(SLICE)
    assert "the gate is deferred" in demo.output
    assert "SUCCEEDED at attempt 1, held by flights_drain/" in demo.output
    assert list(demo.temporary.glob("taskq-demo-*")) == [], "the home of a successful demo is removed"


def test_a_demo_that_keeps_running_proposes_commands_that_work(demo: Demo) -> None:
    assert demo.answers.endswith("exit code 0"), demo.answers
    assert "is not a known aircraft" in demo.answers
    assert "Would" in demo.answers, "the retry only says what it would do"


def test_the_servers_of_the_demo_listen_on_the_loopback_address_only_and_end_with_it(demo: Demo) -> None:
    assert demo.listening == {"127.0.0.1"}
    assert demo.left == []


@pytest.mark.promise("the Spark driver is killed")
def test_a_drain_killed_in_the_middle_is_finished_by_its_retry_and_nothing_is_done_twice(demo: Demo) -> None:
    states = re.findall(r"drain (\w+)", demo.output.partition("the gate is deferred")[2])
    assert [state for state, _ in itertools.groupby(states) if state in ("up_for_retry", "success")] == [
        "up_for_retry",
        "success",
    ], demo.output
    assert counts(demo.dsn) == expected(SLICE)
    with connect(demo.dsn) as conn:
        tasks = TaskQueue(conn).page(TOPIC, size=SLICE)
    assert {(task.attempt, task.crashes) for task in tasks} == {(1, 1)}, (
        "the retry took over the same claim, after a crash"
    )


def test_a_topic_with_other_tasks_is_not_emptied_by_the_demo(dsn: str) -> None:
    with connect(dsn) as conn:
        queue = TaskQueue(conn)
        queue.create_topic(TOPIC)
        queue.push(TOPIC, ["a task of another program"])
    with pytest.raises(TaskQueueError, match="not the demo's"):
        prepare(dsn)
    assert counts(dsn) == {State.READY: 1}


def _wait_until_held(dsn: str, running: subprocess.Popen[bytes]) -> None:
    """Waits until the driver has claimed, which is before it reads tasks."""
    deadline = time.monotonic() + 1200
    while not counts(dsn).get(State.ACTIVE) and running.poll() is None:
        assert time.monotonic() < deadline, "the drain never claimed"
        time.sleep(0.1)  # between two reads of the database


def _driver(running: subprocess.Popen[bytes]) -> psutil.Process:
    """The JVM of spark-submit, which is a descendant of the demo."""
    [driver] = [
        process
        for process in psutil.Process(running.pid).children(recursive=True)
        if "org.apache.spark.deploy.SparkSubmit" in _words(process)
    ]
    return driver


def _listens_on(process: psutil.Process) -> set[str]:
    """The addresses that a process listens on; empty if the process has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return {each.laddr.ip for each in process.net_connections("inet") if each.status == "LISTEN"}
    return set()


def _words(process: psutil.Process) -> list[str]:
    """The command line of a process; empty if the process has ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # a zombie is one
        return []
