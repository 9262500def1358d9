"""taskq health: findings about what slows or threatens the queue."""

from dataclasses import asdict
from datetime import timedelta

import click

from airflow_provider_taskq.cli._options import AGE
from airflow_provider_taskq.cli._output import table
from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.queue import Severity


@click.command(help="List what slows or threatens the queue, the worst first. Exit code 1 for a WARNING or worse.")
@click.option(
    "--patience", type=AGE, default="5m", help="The time that a due task or a lapsed lease may wait without a finding."
)
@click.option("--all", "all_", is_flag=True, help="Also list subjects that are FINE.")
@click.pass_obj
def health(session: Session, patience: timedelta, all_: bool) -> None:
    with session.read_only() as queue:
        findings = queue.health(patience)
    worst = max((finding.severity for finding in findings), default=Severity.FINE)
    document = [{**asdict(finding), "severity": finding.severity.name} for finding in findings]
    shown = [finding for finding in findings if all_ or finding.severity > Severity.FINE]
    rows = [(finding.severity, finding.subject, finding.detail, str(finding.pid or "")) for finding in shown]
    parts = [table(["severity", "~subject", "=what", "#pid"], rows)] if rows else []
    fine = f"{len(findings) - len(shown)} of {len(findings)} subjects are fine." if shown else "All subjects are fine."
    session.answer({"worst": worst.name, "findings": document}, *parts, *([] if all_ else [fine]))
    if worst >= Severity.WARNING:
        raise click.exceptions.Exit(1)
