"""ticks: recurring tasks that wait, and how they are installed."""

from dataclasses import asdict
from datetime import timedelta

import click

from airflow_provider_taskq.cli._options import DURATION, TOPIC, dry_run_option, topic_argument
from airflow_provider_taskq.cli._output import table
from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.cli.asking import plural
from airflow_provider_taskq.cli.command_group import CommandGroup
from airflow_provider_taskq.cli.glance import glances
from airflow_provider_taskq.cli.payload import payload_option
from airflow_provider_taskq.cli.schedules import moments_and_hash
from airflow_provider_taskq.cli.trail import note
from airflow_provider_taskq.cli.words import ago
from airflow_provider_taskq.queue import Json, NewTask

MOST = 1_000  # ticks that a count goes to


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    help="List recurring tasks that wait: of each prefix and hash how many, the next and the last.",
)
@click.option("--topic", type=TOPIC, help="Only of this topic.")
@click.pass_context
def ticks(ctx: click.Context, topic: str | None) -> None:
    """Shows the ticks, unless something is to be done."""
    if ctx.invoked_subcommand is None:
        _list(ctx.ensure_object(Session), topic)


def _list(session: Session, topic: str | None) -> None:
    """Shows a line for each prefix and hash."""
    with session.looking() as queue:
        now = queue.now()
        topics = [one.topic for one in glances(queue)] if topic is None else [topic]
        found = [(name, *queue.browse_ticks(name)) for name in topics]
    lines = [(name, line) for name, of_topic, _ in found for line in of_topic]
    capped = [name for name, _, capped in found if capped]
    rows = [
        (
            name,
            line.prefix,
            line.schedule,
            line.config_hash,
            _count(line.waiting),
            ago(line.next, now),
            ago(line.last, now),
        )
        for name, line in lines
    ]
    parts = [table(["~topic", "~prefix", "~schedule", "hash", "#waiting", "next", "?last"], rows)] if rows else []
    said = [f"Topic {name} has more tasks than were looked at." for name in capped]
    document = {"ticks": [{"topic": name, **asdict(line)} for name, line in lines], "capped": capped}
    session.answer(document, *parts, *said, *([] if rows or said else ["No ticks wait."]))


@ticks.command(
    help="Make the ticks of PREFIX that are missing in TOPIC; run it again before the last is due. Ticks of the same "
    "prefix that another schedule made are removed. TaskQTicksOperator with the same schedule makes the same ticks."
)
@topic_argument
@click.argument("prefix")
@click.option("--every", type=DURATION, help="A period, aligned to its boundary in UTC: 15m.")
@click.option("--daily", multiple=True, metavar="HH:MM", help="A time of day; several are several ticks a day.")
@click.option("--cron", metavar="FIELDS", help="A cron expression of five fields, or @hourly and the like.")
@click.option("--zone", default="UTC", show_default=True, help="The time zone of --daily and --cron.")
@click.option("--ahead", type=DURATION, default="1d", show_default=True, help="How far ahead; at least the next one.")
@payload_option
@dry_run_option
@click.pass_obj
def install(
    session: Session,
    topic: str,
    prefix: str,
    every: timedelta | None,
    daily: tuple[str, ...],
    cron: str | None,
    zone: str,
    ahead: timedelta,
    payload: Json,
    dry_run: bool,
) -> None:
    """Installs, and says how many are new."""
    with session.acting(dry_run=dry_run) as queue:
        moments, config_hash = moments_and_hash(
            every, daily, cron, zone, begin=queue.now(), ahead=ahead, payload=payload
        )
        ticked = [(moment, NewTask(prefix, payload)) for moment in moments]
        count = queue.install_ticks(topic, prefix, config_hash, ticked)
        note(queue, "install ticks", topic, f"{prefix}/{config_hash}", count)
    verb = "Would make" if dry_run else "Made"
    said = f"{verb} {plural(count, 'tick')} of {prefix}/{config_hash}, up to {moments[-1]:%Y-%m-%d %H:%M %Z}."
    document = {"topic": topic, "prefix": prefix, "config_hash": config_hash, "installed": count}
    session.answer({**document, "last": moments[-1], "dry_run": dry_run}, said)


@ticks.command(help="Remove the ticks of PREFIX and HASH that wait in TOPIC; what is held or has ended stays.")
@topic_argument
@click.argument("prefix")
@click.argument("config_hash", metavar="HASH")
@dry_run_option
@click.pass_obj
def uninstall(session: Session, topic: str, prefix: str, config_hash: str, dry_run: bool) -> None:
    """Uninstalls, and says how many there were."""
    with session.acting(dry_run=dry_run) as queue:
        count = queue.uninstall_ticks(topic, prefix, config_hash)
        note(queue, "uninstall ticks", topic, f"{prefix}/{config_hash}", count)
    said = f"{'Would remove' if dry_run else 'Removed'} {plural(count, 'tick')} of {prefix}/{config_hash}."
    document = {"topic": topic, "prefix": prefix, "config_hash": config_hash, "removed": count, "dry_run": dry_run}
    session.answer(document, said)


def _count(count: int) -> str:
    return f"{MOST:,}+" if count >= MOST else f"{count:,}"
