import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from demo.airflow_site import AirflowError, AirflowSite
from demo.guardian import alive, family

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
COMPONENTS = {"api-server", "scheduler", "dag-processor", "triggerer"}
DAGS = """
import os, subprocess
from airflow.sdk import DAG, task

with DAG("greets", schedule=None):
    @task
    def greet(params, dag_run):
        print("hello", dag_run.conf["name"], os.environ["GREETING"], os.environ.get("SPARK_HOME"))
    @task
    def twice(number):
        return number
    greet() >> twice.expand(number=[1, 2])

with DAG("fails", schedule=None):
    @task
    def fail():
        raise RuntimeError("as it should")
    fail()

with DAG("hangs", schedule=None):
    @task
    def hang():
        subprocess.run(["sleep", "987"])
    hang()
"""
CHILD = """
import sys
from pathlib import Path
from demo.airflow_site import AirflowSite
site = AirflowSite(Path(sys.argv[1]), Path(sys.argv[2]), metadata_dsn=sys.argv[3])
site.start()
print(site.run_state("greets", "first"))
print(*site.pids.values(), flush=True)
sys.stdin.readline()
"""


def dags_in(folder: Path) -> Path:
    folder.mkdir()
    (folder / "some.py").write_text(DAGS, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="taskq site "))  # with a space, as a clone's path may have
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def site(place: Path, metadata: str) -> Iterator[AirflowSite]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION", "True")
        patch.setenv("SPARK_HOME", "/nowhere")
        folder, env = dags_in(place / "dags"), {"GREETING": "from env"}
        running = AirflowSite(place / "airflow", folder, metadata_dsn=metadata, env=env)
    with running:
        yield running


def everything_of(site: AirflowSite) -> list[psutil.Process]:
    return [process for pid in site.pids.values() for process in family(pid)]


def words(process: psutil.Process) -> list[str]:
    """The command line of a process; empty if the process has ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # a zombie is one
        return []


def listens_on(process: psutil.Process) -> set[str]:
    """The addresses that a process listens on; empty if the process has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return {each.laddr.ip for each in process.net_connections("inet") if each.status == "LISTEN"}
    return set()


def test_the_components_are_healthy_and_listen_on_the_loopback_address_only(site: AirflowSite) -> None:
    assert set(site.pids) == COMPONENTS
    assert {part["status"] for part in site.health().values()} == {"healthy"}
    assert set().union(*map(listens_on, everything_of(site))) == {"127.0.0.1"}


def test_a_run_goes_from_trigger_to_success(site: AirflowSite) -> None:
    site.wait_dags("greets")
    run = site.trigger("greets", "first", {"name": "world"})
    assert site.wait_run("greets", run, {"success"}, 300) == site.run_state("greets", "first") == "success"
    assert site.task_states("greets", run) == {"greet": "success", "twice[0]": "success", "twice[1]": "success"}
    assert "hello world from env None" in site.log_text()


def test_a_wait_for_a_state_that_cannot_come_fails_at_once(site: AirflowSite) -> None:
    run = site.trigger("fails")
    assert site.wait_task("fails", run, "fail", {"failed"}, 300) == "failed"
    with pytest.raises(
        AirflowError, match=r"ended as failed, not as success(.|\n)*log of fail ends with(.|\n)*as it should"
    ):
        site.wait_run("fails", run, {"success"}, 300)
    with pytest.raises(AirflowError, match=r"GET dags/none/dagRuns/r: 404"):
        site.run_state("none", "r")


def test_killing_the_scheduler_kills_its_tasks_and_it_can_be_restarted(site: AirflowSite) -> None:
    run = site.trigger("hangs")
    site.wait_task("hangs", run, "hang", {"running"}, 300)
    before = family(site.pids["scheduler"])
    deadline = time.monotonic() + 300
    while not any("987" in words(process) for process in before):
        assert time.monotonic() < deadline
        before = family(site.pids["scheduler"])
        time.sleep(0.2)  # between two checks
    site.kill("scheduler")
    assert not any(alive(process) for process in before)
    assert "scheduler" not in site.pids
    site.restart("scheduler")
    site.patch(f"dags/hangs/dagRuns/{run}", {"state": "failed"})
    assert site.pids["scheduler"] not in {process.pid for process in before}
    assert site.health()["scheduler"]["status"] == "healthy"


def test_a_component_that_dies_by_itself_is_named_with_its_log(site: AirflowSite) -> None:
    psutil.Process(site.pids["triggerer"]).kill()
    with pytest.raises(AirflowError, match=r"airflow triggerer ended with -9:(.|\n)*[Tt]rigger"):
        site.restart("dag-processor")
    site.restart("triggerer")
    assert set(site.pids) == COMPONENTS


def test_a_second_start_knows_the_runs_and_ends_when_its_program_is_killed(
    site: AirflowSite, place: Path, metadata: str
) -> None:
    site.stop()
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(site.home), str(place / "dags"), metadata],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "success\n"
    everything = [process for pid in child.stdout.readline().split() for process in family(int(pid))]
    assert len(everything) >= len(COMPONENTS)
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=300)
    psutil.wait_procs(everything, timeout=300)
    assert not any(alive(process) for process in everything)
