import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from demo.airflow_site import AirflowSite
from demo.guardian import alive, family

pytestmark = [pytest.mark.slow, pytest.mark.documents, pytest.mark.timeout(900)]
COMPONENTS = {"api-server", "scheduler", "dag-processor", "triggerer"}
DAGS = """
import os
from airflow.sdk import DAG, task

with DAG("greets", schedule=None):
    @task
    def greet(dag_run):
        print("hello", dag_run.conf["name"], os.environ["GREETING"], os.environ.get("SPARK_HOME"))
    greet()
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


def listens_on(process: psutil.Process) -> set[str]:
    """The addresses that a process listens on; empty if the process has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return {each.laddr.ip for each in process.net_connections("inet") if each.status == "LISTEN"}
    return set()


def test_the_components_are_healthy_and_listen_on_the_loopback_address_only(site: AirflowSite) -> None:
    assert set(site.pids) == COMPONENTS
    assert {part["status"] for part in site.health().values()} == {"healthy"}
    assert set().union(*map(listens_on, everything_of(site))) == {"127.0.0.1"}


def test_a_run_succeeds_and_a_second_start_knows_it_and_ends_when_its_program_is_killed(
    site: AirflowSite, place: Path, metadata: str
) -> None:
    run = site.trigger("greets", "first", {"name": "world"})
    assert site.wait_run("greets", run, {"success"}, 300) == "success"
    assert "hello world from env None" in site.log_text()
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
