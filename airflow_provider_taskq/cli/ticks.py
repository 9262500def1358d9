"""taskq ticks: recurring tasks."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, time, timedelta

import click

from airflow_provider_taskq.cli._durations import format_age
from airflow_provider_taskq.cli._options import (
    DURATION,
    TOPIC,
    CommandGroup,
    dry_run_option,
    topic_argument,
)
from airflow_provider_taskq.cli._output import plural, table
from airflow_provider_taskq.cli._session import Session, audit
from airflow_provider_taskq.cli.push import payload_option
from airflow_provider_taskq.cli.topics import summaries
from airflow_provider_taskq.queue import Json, NewTask, config_hash, ticks_cron, ticks_daily, ticks_every

MAX_TICKS = 1_000_000  # ticks that one call makes


def moments_and_hash(
    every: timedelta | None,
    daily: Sequence[str],
    cron: str | None,
    zone: str,
    *,
    begin: datetime,
    ahead: timedelta,
    payload: Json,
) -> tuple[list[datetime], str]:
    """The moments to come, and the hash of what they were worked out from."""
    if (every is not None) + bool(daily) + (cron is not None) != 1:
        raise click.UsageError("say when by exactly one of --every, --daily and --cron")
    if every is not None:
        count = max(1, ahead // every) if every else 1
        if count > MAX_TICKS:
            raise click.UsageError(f"--every and --ahead make {count:,} ticks, more than {MAX_TICKS:,}")
        return ticks_every(every, begin, count), config_hash("every", every.total_seconds(), payload)
    if cron is not None:
        return ticks_cron(cron, zone, begin, ahead), config_hash("cron", cron, zone, payload)
    hours = sorted(map(_hour, daily))
    times: list[Json] = [hour.isoformat() for hour in hours]
    return ticks_daily(hours, zone, begin, ahead), config_hash("daily", times, zone, payload)


def _hour(text: str) -> time:
    """A time of day: 09:00."""
    try:
        return time.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"{text!r} is no time of day: write 09:00") from None


TICKS_CAP = 1_000  # ticks that a count goes to


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
        _list_ticks(ctx.ensure_object(Session), topic)


def _list_ticks(session: Session, topic: str | None) -> None:
    """Shows a line for each prefix and hash."""
    with session.looking() as queue:
        now = queue.now()
        topics = [one.topic for one in summaries(queue)] if topic is None else [topic]
        found = [(name, *queue.browse_ticks(name)) for name in topics]
    lines = [(name, line) for name, of_topic, _ in found for line in of_topic]
    capped = [name for name, _, capped in found if capped]
    rows = [
        (
            name,
            line.prefix,
            line.schedule,
            line.config_hash,
            _capped(line.waiting),
            format_age(line.next, now),
            format_age(line.last, now),
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
        audit(queue, "install ticks", topic, f"{prefix}/{config_hash}", count)
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
        audit(queue, "uninstall ticks", topic, f"{prefix}/{config_hash}", count)
    said = f"{'Would remove' if dry_run else 'Removed'} {plural(count, 'tick')} of {prefix}/{config_hash}."
    document = {"topic": topic, "prefix": prefix, "config_hash": config_hash, "removed": count, "dry_run": dry_run}
    session.answer(document, said)


def _capped(count: int) -> str:
    return f"{TICKS_CAP:,}+" if count >= TICKS_CAP else f"{count:,}"
