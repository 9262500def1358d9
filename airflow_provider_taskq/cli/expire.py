"""expire: the tasks of owners whose lease has lapsed."""

from datetime import timedelta

import click

from airflow_provider_taskq.cli._options import AGE, dry_run_option
from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.cli.asking import plural
from airflow_provider_taskq.cli.trail import note
from airflow_provider_taskq.cli.words import exactly


@click.command(help="Take back what is held under leases that have lapsed, by each topic's policy. Safe at any time.")
@click.option("--grace", type=AGE, default="0s", help="Spare leases that lapsed no longer ago than this.")
@dry_run_option
@click.pass_obj
def expire(session: Session, grace: timedelta, dry_run: bool) -> None:
    """Expires, and says how many tasks that were."""
    with session.acting(dry_run=dry_run) as queue:
        count = queue.expire(grace)
        if count:
            note(queue, "expire", None, f"leases that lapsed more than {exactly(grace)} ago", count)
    tasks = plural(count, "task")
    said = f"{tasks} {'would be' if dry_run else 'were' if count != 1 else 'was'} taken back from lapsed leases."
    session.answer({"tasks": count, "dry_run": dry_run}, said)
