"""`airflow taskq`, as Airflow finds it through provider info: imported by every `airflow ...`, so nearly empty."""

import argparse

from airflow.cli.cli_config import ActionCommand, Arg, CLICommand, lazy_load_command

_HELP = "The work queue in PostgreSQL: its schema, topics, tasks, owners and health."


class _Everything(Arg):
    """All that follows on the line, options and `--help` included: the program behind it reads them itself."""

    def __init__(self) -> None:
        super().__init__(("words",), nargs=argparse.REMAINDER)  # type: ignore[no-untyped-call]

    def add_to_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds this to the parser of `airflow taskq`, after telling it that no word is an option of its own."""
        parser.prefix_chars = "\0"
        super().add_to_parser(parser)


def get_cli_commands() -> list[CLICommand]:
    """The one command that Airflow adds."""
    run = lazy_load_command("airflow_provider_taskq.cli.airflow.run")
    return [ActionCommand(name="taskq", help=_HELP, func=run, args=(_Everything(),))]
