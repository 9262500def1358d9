"""`airflow taskq`: the same program behind Airflow's own command line."""

import argparse
import subprocess
import sys

import pytest
from airflow.cli.cli_config import ActionCommand

from airflow_provider_taskq.cli.airflow import get_cli_commands
from airflow_provider_taskq.get_provider_info import get_provider_info

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
