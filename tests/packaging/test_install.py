"""The light distribution in a new environment: it pushes, works and reads without Airflow."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packaging.conftest import CORE, Distribution

pytestmark = [
    pytest.mark.slow,
    pytest.mark.documents,
    pytest.mark.promise("The distributions contain what they need, and declare what they import"),
]  # builds, and installs from the package index

HANDLERS = """
from airflow_provider_taskq.queue import Result

def deliver(task):
    return Result.SUCCESS if task.payload["total"] > 0 else Result.FILTER
"""
PUSH = """
from airflow_provider_taskq.queue import NewTask, TaskQueue, connect
with connect() as conn:
    TaskQueue(conn).push("mail", [NewTask(f"customer-{number}", {"total": number}) for number in range(10)])
"""
CONSUME = """
import threading
from airflow_provider_taskq.consumer import Consumer, ConsumerConfig, ConsumerGroup
seen, done = set(), threading.Event()
group = ConsumerGroup("letters")
@group.on()
def note(event):
    seen.add(event.identifier)
    if len(seen) == 10:
        done.set()
with Consumer(None, group, "mail", ConsumerConfig(partitions=1)):
    assert done.wait(300), seen
print(len(seen))
"""
PIP = ("pip", "--disable-pip-version-check")

Program = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def environment(built: dict[str, Distribution], repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new virtual environment with the core, and its requirements in the versions of the constraints."""
    folder = tmp_path_factory.mktemp("light") / "venv"
    pins = repository / "constraints" / "constraints-{}.{}.txt".format(*sys.version_info[:2])
    pinned = ["-c", str(pins)] if pins.exists() else []
    pip = [str(folder / "bin" / "python"), "-m", *PIP, "install", "--quiet", "--no-input"]
    for command in ([sys.executable, "-m", "venv", str(folder)], [*pip, *pinned, str(built[CORE].wheel)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=_clean())
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return folder


@pytest.fixture
def program(environment: Path, empty_dsn: str, tmp_path: Path) -> Program:
    """Runs a program of the environment in an empty folder, on an empty database."""
    (tmp_path / "handlers.py").write_text(HANDLERS)

    def run(name: str, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [str(environment / "bin" / name), *arguments]
        env = {**_clean(), "TASKQ_DSN": empty_dsn}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == code, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done

    return run


def _clean() -> dict[str, str]:
    """The environment of this process without what leads to other packages or another database."""
    unwanted = ("PYTHON", "TASKQ_", "PG", "AIRFLOW", "VIRTUAL_ENV", "COVERAGE")
    return {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}


def test_a_web_application_its_workers_its_consumers_and_its_ticks_need_no_airflow(program: Program) -> None:
    program("taskq", "install")
    program("taskq", "topics", "create", "mail")
    program("python", "-c", PUSH)
    program("taskq", "push", "mail", "by-hand", "--payload", '{"total": 11}')
    done = json.loads(program("taskq", "worker", "handlers:deliver", "--topic", "mail", "--drain", "--json").stdout)
    assert (done["handled"], done["succeeded"], done["filtered"]) == (11, 10, 1)
    listed = json.loads(program("taskq", "ls", "mail", "--state", "SUCCEEDED", "--json").stdout)
    assert {task["identifier"] for task in listed["tasks"]} >= {"by-hand", "customer-9"}
    assert program("taskq", "verify").stdout
    assert program("python", "-c", CONSUME).stdout.split() == ["10"]
    program("taskq", "ticks", "install", "mail", "nightly", "--cron", "0 3 * * *", "--zone", "Europe/Berlin")


def test_the_environment_has_neither_airflow_nor_spark_nor_their_modules_of_ours(program: Program) -> None:
    for name in ("airflow", "pyspark", "airflow_provider_taskq.operators", "airflow_provider_taskq.spark"):
        refused = program("python", "-c", f"import {name}", code=1)
        assert refused.stderr.splitlines()[-1] == f"ModuleNotFoundError: No module named '{name}'"
    assert "apache" not in program("python", "-m", "pip", "list").stdout
    program("python", "-m", "pip", "check")
