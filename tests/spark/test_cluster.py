"""The drain on a standalone cluster: its executors lack this package, and one of them is killed."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import psutil
import psycopg
import pytest

from airflow_provider_taskq.queue import Json, State, TaskQueue
from airflow_provider_taskq.spark import application_path
from demo.processes import Servers
from tests.spark.cluster import Cluster, is_executor, python_without_us, spark_home, standalone_cluster
from tests.spark.cluster import submit_environment as environment_of

pytestmark = [pytest.mark.slow, pytest.mark.promise("Executors and clients of Spark Connect need few libraries")]

Push = Callable[[int], list[int]]

PROGRAMS = Path(__file__).parent / "programs"
COUNT = 40


class Program(NamedTuple):
    """A running program, and the file with its output."""

    process: subprocess.Popen[bytes]
    log: Path

    def finish(self) -> str:
        """Waits until the program has succeeded; returns its output."""
        assert self.process.wait(600) == 0, self.log.read_text()
        return self.log.read_text()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers."""
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
        processes = [psutil.Process(pid) for pid in running.workers]
    assert psutil.wait_procs(processes, timeout=10)[1] == []


@pytest.fixture(scope="session")
def workers_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without this package."""
    return python_without_us(tmp_path_factory.mktemp("python") / "venv")


@pytest.fixture
def submit(
    cluster: Cluster, workers_python: Path, python_environment: Mapping[str, str], dsn: str, tmp_path: Path
) -> Iterator[Callable[..., Program]]:
    """Submits a drain to the cluster, with this package as a zip and the functions."""
    servers, log = Servers(), tmp_path / "driver.log"
    package = shutil.make_archive(str(tmp_path / "package"), "zip", PROGRAMS.parents[2], "airflow_provider_taskq")
    environment = {**environment_of(python_environment, workers_python), "TASKQ_DSN": dsn}
    conf = {
        "spark.cores.max": "2",
        "spark.executor.memory": "512m",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # begin with both executors
        "spark.ui.enabled": "false",
    }

    def submitted(*work: str) -> Program:
        command = [str(spark_home() / "bin" / "spark-submit"), "--master", cluster.master]
        command += [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
        command += ["--py-files", f"{package},{PROGRAMS / 'clustered.py'}", application_path()]
        command += ["--topic=work", "--owner=me", "--partitions=4", *work]
        return Program(servers.start("driver", command, log=log, env=environment, cwd=tmp_path), log)

    yield submitted
    servers.close()


def test_the_executors_python_has_the_required_libraries_but_not_this_package(workers_python: Path) -> None:
    def imported(modules: str) -> subprocess.CompletedProcess[str]:
        command = [str(workers_python), "-I", "-c", f"import {modules}"]
        return subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)

    needed = imported("psycopg, psycopg_binary.pq, pyarrow")
    assert needed.returncode == 0, needed.stderr
    assert "No module named 'airflow_provider_taskq'" in imported("airflow_provider_taskq").stderr


def test_spark_keeps_python_drivers_out_of_a_standalone_cluster(python_environment: Mapping[str, str]) -> None:
    command = [str(spark_home() / "bin" / "spark-submit"), "--master=spark://127.0.0.1:1", "--deploy-mode=cluster"]
    refused = subprocess.run(
        [*command, application_path()], env=dict(python_environment), capture_output=True, text=True, check=False
    )
    assert "not supported for python applications on standalone clusters" in refused.stderr


def test_executors_drain_with_the_package_that_is_sent_to_them(
    submit: Callable[..., Program], cluster: Cluster, queue: TaskQueue, push: Push, workers_python: Path
) -> None:
    push(COUNT)
    output = submit("--each=clustered:tell_where").finish()
    outputs = objects(task.output for task in queue.page("work", size=COUNT + 1))
    assert sorted(each["number"] for each in outputs) == list(range(COUNT))
    assert {each["python"] for each in outputs} == {str(workers_python.parents[1])}
    for each in outputs:  # it came in the zip, to where a worker of the cluster keeps what it was sent
        assert each["package"].endswith("package.zip/airflow_provider_taskq/__init__.py")
        assert each["package"].startswith(str(cluster.folder))
    assert f"drain progress: topic=work round=1 done={COUNT} claimed={COUNT}" in output


@pytest.mark.promise("a Spark task runs twice, or an executor is killed")
@pytest.mark.chaos
def test_killing_an_executor_during_a_task_changes_no_decision(
    submit: Callable[..., Program],
    cluster: Cluster,
    queue: TaskQueue,
    conn: psycopg.Connection[Any],
    push: Push,
    tmp_path: Path,
) -> None:
    queue.create_topic("next")
    push(COUNT)
    notes = tmp_path / "notes"
    notes.mkdir()
    driver = submit("--transform=clustered:wait_and_note", f"--option=notes={notes}")

    def noted(*attempts: str) -> Callable[[], bool]:
        return lambda: all((notes / each).exists() for each in attempts)

    wait_until(noted("0-0", "1-0", "2-0"), driver)
    wait_until(lambda: conn.execute("SELECT count(*) FROM taskq.staged").fetchall() == [(COUNT // 4,)], driver)
    killed = executor_of(notes / "2-0")
    assert killed in cluster.executors()
    killed.kill()
    assert psutil.wait_procs([killed], timeout=600)[1] == []
    wait_until(noted("2-1"), driver)
    assert executor_of(notes / "2-1") != killed
    (notes / "gate").touch()
    output = driver.finish()
    assert {state: count.count for state, count in queue.count("work")["work"].items()} == {State.SUCCEEDED: COUNT}
    decided = objects(task.output for task in queue.page("work", size=COUNT + 1))
    followed = objects(task.payload for task in queue.page("next", size=COUNT + 1))
    for outputs in (decided, followed):
        assert sorted(each["number"] for each in outputs) == list(range(COUNT))
    tries = "SELECT DISTINCT attempt, crashes FROM taskq.tasks WHERE topic = 'work'"
    assert conn.execute(tries).fetchall() == [(1, 0)]
    assert conn.execute("SELECT count(*) FROM taskq.staged").fetchall() == [(0,)]
    assert queue.owners() == []
    report = output[output.rindex('"decided":') :]
    assert f'"decided": {COUNT},' in report
    assert f'"completed": {{"SUCCESS": {COUNT}}}, "failed": 0, "pushed": {COUNT}, "undecided": 0,' in report


CLUSTER = """
import time
from pathlib import Path
from tests.spark.cluster import standalone_cluster

with standalone_cluster(Path.cwd()):
    Path("running").touch()
    time.sleep(600)
"""


def test_a_cluster_ends_with_the_program_that_started_it(python_environment: Mapping[str, str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [sys.executable, "-c", CLUSTER], env=dict(python_environment), cwd=tmp_path, stdout=output, stderr=output
        ) as process,
    ):
        try:
            wait_until((tmp_path / "running").exists, Program(process, log))
            started = psutil.Process(process.pid).children(recursive=True)
        finally:
            process.kill()
    assert len(started) >= 4, "a guardian, a master and two workers"
    assert psutil.wait_procs(started, timeout=60)[1] == []


def objects(values: Iterable[Json]) -> list[dict[str, Any]]:
    """Checks that all values are JSON objects, and returns them."""
    found = list(values)
    assert all(isinstance(value, dict) for value in found)
    return cast("list[dict[str, Any]]", found)


def executor_of(note: Path) -> psutil.Process:
    """The executor in which an attempt of a Spark task runs, found from its Python process."""
    (found,) = [each for each in psutil.Process(int(note.read_text())).parents() if is_executor(each)]
    return found


def wait_until(happened: Callable[[], bool], program: Program) -> None:
    """Waits until a condition holds; fails with the output of the program if that ends before."""
    deadline = time.monotonic() + 600
    while not happened():
        assert program.process.poll() is None, program.log.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)  # between two checks
