"""taskq health: findings about what slows or threatens the queue."""

from datetime import timedelta

import click

from airflow_provider_taskq.cli._findings import all_option, patience_option, render_findings
from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.queue import Severity


@click.command(help="List what slows or threatens the queue, the worst first. Exit code 1 for a WARNING or worse.")
@patience_option
@all_option
@click.pass_obj
def health(session: Session, patience: timedelta, all_: bool) -> None:
    with session.read_only() as queue:
        findings = queue.health(patience)
    worst = render_findings(session, findings, all_=all_)
    if worst >= Severity.WARNING:
        raise click.exceptions.Exit(1)
