"""Findings of `taskq health` and `taskq doctor`: their options, their table, and their document."""

from collections.abc import Sequence

import click

from airflow_provider_taskq.cli._options import AGE
from airflow_provider_taskq.cli._output import facts, table
from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.queue import HealthFinding, Severity

patience_option = click.option(
    "--patience", type=AGE, default="5m", help="The time that a due task or a lapsed lease may wait without a finding."
)
all_option = click.option("--all", "all_", is_flag=True, help="Also list subjects that are FINE.")


def render_findings(session: Session, findings: Sequence[HealthFinding], *, all_: bool) -> Severity:
    """Answer with the findings, the worst first, and with their remedies. Return the worst severity."""
    worst = max((finding.severity for finding in findings), default=Severity.FINE)
    document = [{**finding._asdict(), "severity": finding.severity.name} for finding in findings]
    shown = [finding for finding in findings if all_ or finding.severity > Severity.FINE]
    rows = [(finding.severity, finding.subject, finding.detail, str(finding.pid or "")) for finding in shown]
    listed = table(["severity", "~subject", "=what", "#pid"], rows)
    fine = len(findings) - len(shown)
    rest = [f"{fine} of {len(findings)} subjects are fine." if shown else "All subjects are fine."] if not all_ else []
    remedies = dict.fromkeys((finding.subject, finding.remedy) for finding in shown if finding.remedy)
    if remedies:
        rest.append("\nWhat mends it, or shows the cause:")
    session.answer({"worst": worst.name, "findings": document}, listed, *rest, *([facts(remedies)] if remedies else []))
    return worst
