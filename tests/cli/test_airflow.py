"""`airflow taskq`: the same program behind Airflow's own command line."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from airflow import __version__
from airflow.cli.cli_config import ActionCommand

from airflow_provider_taskq.cli.airflow import get_cli_commands
from airflow_provider_taskq.get_provider_info import get_provider_info
from airflow_provider_taskq.queue import TaskQueue
from tests.cli.conftest import connection_json

pytestmark = pytest.mark.promise("Hooks, operators and `airflow taskq` find the connections of Airflow")

RELEASE = tuple(int(part) for part in __version__.split(".")[:2])
ENTRY = "airflow_provider_taskq.cli.airflow.get_cli_commands"


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    """A parser with only this command, as Airflow adds it."""
    made = argparse.ArgumentParser("airflow")
    [command] = get_cli_commands()
    ours = made.add_subparsers(dest="subcommand").add_parser(command.name, help=command.help)
    assert isinstance(command, ActionCommand)
    for argument in command.args:
        argument.add_to_parser(ours)
    return made


@pytest.mark.parametrize(
    "words",
    [[], ["--help"], ["-h"], ["--json", "topics"], ["push", "work", "--", "-x"], ["ls", "work", "-n", "5", "--oldest"]],
)
def test_airflow_passes_every_argument_to_the_program(parser: argparse.ArgumentParser, words: list[str]) -> None:
    assert parser.parse_args(["taskq", *words]).words == words


def test_provider_info_names_the_command() -> None:
    assert get_provider_info()["cli"] == [ENTRY]
    assert [command.name for command in get_cli_commands()] == ["taskq"]


@pytest.mark.slow
def test_finding_the_command_imports_neither_the_queue_nor_click() -> None:
    program = (
        "import sys; import airflow.cli.cli_config; before = set(sys.modules)\n"
        "from airflow_provider_taskq.cli.airflow import get_cli_commands; get_cli_commands()\n"
        "print(sorted(name for name in set(sys.modules) - before if not name.startswith('airflow_provider_taskq')))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


# Prepares the metadata in the process that asks for an unknown connection, because Airflow's imports take seconds.
PROGRAM = """
import sys
from airflow.__main__ import main
from airflow.models import Connection
from airflow.utils.db import initdb
from airflow.utils.session import create_session
initdb()
with create_session() as session:
    session.add(Connection.from_json(sys.argv[1], conn_id="stored"))
sys.argv = ["airflow", "taskq", "topics", "--conn-id", "unknown"]
main()
"""


@pytest.mark.slow
@pytest.mark.skipif(RELEASE < (3, 2), reason="Airflow adds commands of providers from 3.2 on")
def test_airflow_taskq_finds_a_connection_of_the_metadata_database(queue: TaskQueue, dsn: str, tmp_path: Path) -> None:
    queue.push("work", ["a", "b"])
    hidden = ("TASKQ_", "PG", "AIRFLOW", "_AIRFLOW")
    env = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    env = {**env, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}

    def executed(*command: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    unknown = executed(sys.executable, "-c", PROGRAM, connection_json(dsn), code=1)
    assert "there is no Airflow connection 'unknown'" in unknown.stderr
    assert "airflow connections add unknown --conn-type taskq" in unknown.stderr
    airflow = str(Path(sys.executable).with_name("airflow"))
    listed = executed(airflow, "taskq", "ls", "work", "--conn-id", "stored", "--json")
    assert [task["identifier"] for task in json.loads(listed.stdout)["tasks"]] == ["b", "a"]
