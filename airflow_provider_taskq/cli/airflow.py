"""`airflow taskq`: the same program, on the connections that Airflow keeps."""

import argparse
import os

import click
import psycopg

from airflow_provider_taskq.cli._session import Session


class AirflowSession(Session):
    """Reaches the queue through an Airflow connection."""

    default_name = "taskq_default"

    def connection(self) -> psycopg.Connection:
        """Opens the Airflow connection that `--conn-id` names."""
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


def run(arguments: argparse.Namespace) -> None:
    """Runs the words that Airflow's parser has left alone, and exits with 0, 1 or 2."""
    from airflow_provider_taskq.cli.program import on_airflow

    # As Airflow's own `connections` commands do: without it the SDK looks for connections in the environment and in an
    # external secrets backend only, as in a process that may not use the metadata database.
    os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")
    _keep_logs_out_of_answers()
    on_airflow().main(arguments.words, "airflow taskq", obj=AirflowSession(), auto_envvar_prefix="TASKQ")


def _keep_logs_out_of_answers() -> None:
    """Sends what Airflow logs to stderr, where Airflow can: stdout is for the answer."""
    try:
        from airflow.cli.utils import redirect_stdout_log_handlers_to_stderr
    except ImportError:
        return
    redirect_stdout_log_handlers_to_stderr()
