"""`airflow taskq`: the same program, on the connections that Airflow keeps."""

import argparse

import click
import psycopg

from airflow_provider_taskq.cli.session import Session


class AirflowSession(Session):
    """Reaches the queue through an Airflow connection."""

    default_name = "taskq_default"

    def connection(self) -> psycopg.Connection:
        """Opens the Airflow connection that `--conn-id` names."""
        from airflow.providers.common.compat.sdk import AirflowException

        from airflow_provider_taskq.hooks import TaskQHook

        try:
            return TaskQHook(taskq_conn_id=self.name or self.default_name).get_conn()
        except AirflowException as error:
            raise click.ClickException(str(error)) from None


def run(arguments: argparse.Namespace) -> None:
    """Runs the words that Airflow's parser has left alone, and exits with 0, 1 or 2."""
    from airflow_provider_taskq.cli.program import on_airflow

    _keep_logs_out_of_answers()
    on_airflow().main(arguments.words, "airflow taskq", obj=AirflowSession(), auto_envvar_prefix="TASKQ")


def _keep_logs_out_of_answers() -> None:
    """Sends what Airflow logs to stderr, where Airflow can: stdout is for the answer."""
    try:
        from airflow.cli.utils import redirect_stdout_log_handlers_to_stderr
    except ImportError:
        return
    redirect_stdout_log_handlers_to_stderr()
