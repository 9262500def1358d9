"""taskq doctor: checks of the installation and of the database, each finding with the command that mends it."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import click
import psycopg

from airflow_provider_taskq.cli import _installation as installation
from airflow_provider_taskq.cli._findings import all_option, patience_option, render_findings
from airflow_provider_taskq.cli._options import Choice
from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.queue import HealthFinding, Severity, TaskQueue, TaskQueueError

NEVER = "NEVER"


@click.command(
    help="Check the packages, the connection, the schema, the rights of the role, the clocks, and what `taskq health` "
    "checks in the database. Each finding has the command that mends it or shows its cause. Changes nothing. Exit code "
    "1 if a finding is as severe as --fail-on."
)
@click.option(
    "--fail-on",
    type=Choice(("NOTICE", "WARNING", "CRITICAL", NEVER)),
    default="WARNING",
    show_default=True,
    help="The least severity that makes the exit code 1.",
)
@click.option(
    "--needs",
    type=Choice(installation.KINDS),
    multiple=True,
    help="A kind of access that the role must have; may be repeated.",
)
@patience_option
@all_option
@click.option(
    "--format", "format_", type=Choice(("text", "json")), default="text", help="The form of the answer; json as --json."
)
@click.pass_obj
def doctor(
    session: Session, fail_on: str, needs: tuple[str, ...], patience: timedelta, all_: bool, format_: str
) -> None:
    session.json = session.json or format_ == "json"
    found = sorted(_all_findings(session, needs, patience), key=lambda finding: -finding.severity)
    worst = render_findings(session, found, all_=all_)
    if fail_on != NEVER and worst >= Severity[fail_on]:
        raise click.exceptions.Exit(1)


def _all_findings(session: Session, needs: tuple[str, ...], patience: timedelta) -> Iterator[HealthFinding]:
    yield from installation.check_packages()
    try:
        conn = session.connection()
    except (psycopg.Error, TaskQueueError) as error:
        yield installation.unreachable(error)
        return
    with conn:
        session.role = conn.info.user
        conn.read_only = True
        try:
            yield from _findings_of_database(conn, needs, patience)
        except (psycopg.Error, TaskQueueError) as error:
            yield installation.health_failed(error)


def _findings_of_database(
    conn: psycopg.Connection[Any], needs: tuple[str, ...], patience: timedelta
) -> Iterator[HealthFinding]:
    yield from installation.check_server(conn)
    yield from installation.check_clock(conn)
    schema = list(installation.check_schema(conn))
    yield from schema
    if any(finding.severity is Severity.CRITICAL for finding in schema):
        return
    yield from installation.check_row_security(conn)
    yield from installation.check_grants(conn, needs)
    if installation.may_call_health(conn):
        yield from TaskQueue(conn).health(patience)
    else:
        yield installation.health_not_allowed(conn)
