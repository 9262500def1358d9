"""`airflow taskq --conn-id`: connections in Airflow's metadata database."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from airflow import __version__

from airflow_provider_taskq.queue import TaskQueue
from tests.airflow.conftest import connection_json

RELEASE = tuple(int(part) for part in __version__.split(".")[:2])
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(RELEASE < (3, 2), reason="Airflow adds commands of providers from 3.2 on"),
    pytest.mark.promise("Hooks, operators and `airflow taskq` find the connections of Airflow"),
]


def test_airflow_taskq_finds_a_connection_of_the_metadata_database(queue: TaskQueue, dsn: str, tmp_path: Path) -> None:
    queue.push("work", ["a", "b"])
    hidden = ("TASKQ_", "PG", "AIRFLOW", "_AIRFLOW")
    env = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    env = {**env, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}

    def airflow(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("airflow")), *words]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    airflow("db", "migrate")
    airflow("connections", "add", "stored", "--conn-json", connection_json(dsn))
    listed = airflow("taskq", "ls", "work", "--conn-id", "stored", "--json")
    assert [task["identifier"] for task in json.loads(listed.stdout)["tasks"]] == ["b", "a"]
    unknown = airflow("taskq", "topics", "--conn-id", "unknown", code=1)
    assert "there is no Airflow connection 'unknown'" in unknown.stderr
    assert "airflow connections add unknown --conn-type taskq" in unknown.stderr
