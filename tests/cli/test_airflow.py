"""`airflow taskq`: the same program behind Airflow's own command line."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from airflow.cli.cli_config import ActionCommand

from airflow_provider_taskq.cli.airflow import get_cli_commands
from airflow_provider_taskq.get_provider_info import get_provider_info
from airflow_provider_taskq.queue import TaskQueue
from tests.cli.conftest import connection_json

pytestmark = pytest.mark.promise("Hooks, operators and `airflow taskq` find the connections of Airflow")

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


def test_finding_the_command_imports_neither_the_queue_nor_click() -> None:
    program = (
        "import sys; import airflow.cli.cli_config; before = set(sys.modules)\n"
        "from airflow_provider_taskq.cli.airflow import get_cli_commands; get_cli_commands()\n"
        "print(sorted(name for name in set(sys.modules) - before if not name.startswith('airflow_provider_taskq')))"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.splitlines()[
            -1
        ]
        == "[]"
    )


def test_airflow_taskq_works_on_airflows_connections(queue: TaskQueue, dsn: str, tmp_path: Path) -> None:
    queue.push("work", ["a", "b"])
    hidden = ("TASKQ_", "PG", "AIRFLOW")
    env = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    env = {**env, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW_CONN_MY_QUEUE": connection_json(dsn)}

    def airflow(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("airflow")), "taskq", *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    listed = airflow("ls", "work", "--conn-id", "my_queue", "--json")
    assert listed.returncode == 0, listed.stderr
    assert [task["identifier"] for task in json.loads(listed.stdout)["tasks"]] == ["b", "a"]
    unknown = airflow("topics", "--conn-id", "none")
    assert unknown.returncode == 1
    assert "none" in unknown.stderr
    assert airflow("purge", "--help").stdout.startswith("Usage: airflow taskq purge")
