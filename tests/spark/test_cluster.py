"""The drain on a standalone cluster, whose executors lack this package, and through Spark Connect."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import psutil
import pytest

from airflow_provider_taskq.queue import Json, TaskQueue
from airflow_provider_taskq.spark import application_path
from demo.processes import Servers
from tests.spark.cluster import Cluster, is_executor, python_without_us, spark_home, standalone_cluster
from tests.spark.cluster import submit_environment as environment_of
from tests.spark.conftest import Connection, Push, check_decided_once, names, states

pytestmark = [
    pytest.mark.slow,
    pytest.mark.own_database,
    pytest.mark.promise("Executors and clients of Spark Connect need few libraries"),
]

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


@pytest.mark.faults
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
    submit: Callable[..., Program], cluster: Cluster, queue: TaskQueue, conn: Connection, push: Push, tmp_path: Path
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
    check_decided_once(queue, COUNT)
    decided = objects(task.output for task in queue.page("work", size=COUNT + 1))
    followed = objects(task.payload for task in queue.page("next", size=COUNT + 1))
    for outputs in (decided, followed):
        assert sorted(each["number"] for each in outputs) == list(range(COUNT))
    report = output[output.rindex('"decided":') :]
    assert f'"decided": {COUNT},' in report
    assert (
        f'"completed": {{"SUCCESS": {COUNT}}}, "failed": 0, "pushed": {COUNT}, "undecided": 0, "returned": 0,' in report
    )


@pytest.mark.promise("a Spark task runs twice, or an executor is killed")
@pytest.mark.faults
def test_speculative_executors_without_a_database_in_their_environment_decide_and_push_once(
    dsn: str, queue: TaskQueue, push: Push, python_environment: Mapping[str, str], tmp_path: Path
) -> None:
    push(COUNT)
    for topic in ("next", "pushed"):
        queue.create_topic(topic)
    assert f"done={COUNT}" in run("speculation.py", dsn, python_environment, tmp_path)
    assert sorted(names(queue, "next")) == sorted(f"item-{number}" for number in range(COUNT))
    assert names(queue, "pushed") == [str(number) for number in range(1_000)]
    check_decided_once(queue, COUNT)


@pytest.mark.faults
def test_the_data_source_and_drains_work_through_spark_connect(
    dsn: str, queue: TaskQueue, push: Push, python_environment: Mapping[str, str], tmp_path: Path
) -> None:
    push(6)
    queue.create_topic("copies")
    found = json.loads(run("connected.py", dsn, python_environment, tmp_path).splitlines()[-1])
    check_drains(queue, found.pop("drains"))
    assert found == {"session": "pyspark.sql.connect.session", "claimed": 6, "states": ["SUCCEEDED"] * 6, "ended": True}
    assert states(queue) == {"SUCCEEDED": 6, "READY": 2}
    assert [task.output for task in queue.page("work", size=6)] == [{"number": number} for number in range(6)]
    copies = [*(f"item-{number}" for number in range(6)), "a", "b"]
    assert names(queue, "copies") == copies, "each is copied once in two runs"


def run(program: str, dsn: str, environment: Mapping[str, str], folder: Path) -> str:
    """Runs a program that reads the address of the database from a file; returns what it prints."""
    (folder / "dsn").write_text(dsn)
    command = [sys.executable, str(PROGRAMS / program), str(folder / "dsn")]
    done = subprocess.run(command, env=dict(environment), cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_drains(queue: TaskQueue, found: dict[str, Any]) -> None:
    """The drains decide and push once. One that loses its lease is cancelled on the server, and commits nothing."""
    assert "unknown result 'DONE'" in found.pop("invalid")
    assert "registered again" in found.pop("lost")
    assert found == {"cores": 2, "rounds": 3, "done": 25, "pushed": 25, "composed": 2, "released": 25}
    assert sorted(names(queue, "next")) == sorted(f"item-{number}" for number in range(25))
    assert sorted(names(queue, "notes")) == ["a", "b"]
    assert states(queue, "drained") == {"SUCCEEDED": 27, "ACTIVE": 25}


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
