"""`airflow taskq`: the same commands on Airflow's connections.

Every `airflow ...` command imports this module through the provider info, so it imports little at the top.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from airflow.cli.cli_config import ActionCommand, Arg, CLICommand, lazy_load_command

from airflow_provider_taskq.cli._session import Session

if TYPE_CHECKING:
    import psycopg


def get_cli_commands() -> list[CLICommand]:
    """Return the one command that this provider adds to Airflow."""
    run = lazy_load_command("airflow_provider_taskq.cli.airflow.run")
    summary = "The work queue in PostgreSQL: its schema, topics, tasks, owners and health."
    return [ActionCommand(name="taskq", help=summary, func=run, args=(_RemainingWords(),))]


class _RemainingWords(Arg):
    """Every word after `airflow taskq`, options and `--help` included: click parses them."""

    def __init__(self) -> None:
        super().__init__(("words",), nargs=argparse.REMAINDER)  # type: ignore[no-untyped-call]

    def add_to_parser(self, parser: argparse.ArgumentParser) -> None:
        # No word begins with NUL, so the parser takes none of them for an option of its own.
        parser.prefix_chars = "\0"
        super().add_to_parser(parser)


def run(arguments: argparse.Namespace) -> None:
    """Run the command that the remaining words name, and exit with 0, 1 or 2."""
    from airflow_provider_taskq.cli.program import airflow_program

    # Airflow's own `connections` commands do the same. Without it the SDK looks for connections in the environment and
    # in an external secrets backend only, as in a process that may not use the metadata database.
    os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")
    _redirect_logs_to_stderr()
    airflow_program().main(arguments.words, "airflow taskq", obj=AirflowSession(), auto_envvar_prefix="TASKQ")


def _redirect_logs_to_stderr() -> None:
    """Redirect logs to stderr, because stdout is for the answer.

    Airflow versions without the function log to stderr anyway.
    """
    try:
        from airflow.cli.utils import redirect_stdout_log_handlers_to_stderr
    except ImportError:
        return
    redirect_stdout_log_handlers_to_stderr()


class AirflowSession(Session):
    """A session that connects through an Airflow connection."""

    default_name = "taskq_default"

    def connection(self) -> psycopg.Connection:
        """Open the Airflow connection that `--conn-id` names."""
        import click
        from airflow.providers.common.compat.sdk import AirflowException, AirflowNotFoundException

        from airflow_provider_taskq.hooks import TaskQHook

        conn_id = self.name or self.default_name
        try:
            return TaskQHook(taskq_conn_id=conn_id).get_conn()
        except AirflowNotFoundException:
            raise click.ClickException(
                f"there is no Airflow connection {conn_id!r} in the environment, the secrets backend or the metadata "
                f"database: see `airflow connections list`, and `airflow connections add {conn_id} --conn-type taskq`"
            ) from None
        except AirflowException as error:
            raise click.ClickException(str(error)) from None
