"""taskq ticks: recurring tasks."""

from collections.abc import Sequence
from datetime import time, timedelta

import click

from airflow_provider_taskq.cli._options import DURATION, TOPIC, CommandGroup, dry_run_option, topic_argument
from airflow_provider_taskq.cli._output import capped, plural, table
from airflow_provider_taskq.cli._session import Session, audited
from airflow_provider_taskq.cli._times import format_age
from airflow_provider_taskq.cli.push import payload_option
from airflow_provider_taskq.queue import Json
from airflow_provider_taskq.queue.recurring import CATCH_UPS, CatchUp, RecurringTask
from airflow_provider_taskq.queue.schedules import Schedule

WAITING_CAP = 1_000  # of the count of waiting ticks


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    synonyms={
        **dict.fromkeys(("add", "create", "set"), "install"),
        **dict.fromkeys(("delete", "remove", "rm", "drop"), "uninstall"),
    },
    help="List waiting recurring tasks: for each prefix and hash the count, the next and the last.",
)
@click.option("--topic", type=TOPIC, help="Only this topic.")
@click.pass_context
def ticks(ctx: click.Context, topic: str | None) -> None:
    if ctx.invoked_subcommand is not None:
        return
    session = ctx.ensure_object(Session)
    with session.read_only() as queue:
        now = queue.now()
        topics = queue.topics() if topic is None else [topic]
        found = [(name, *queue.browse_ticks(name)) for name in topics]
    lines = [(name, line) for name, of_topic, _ in found for line in of_topic]
    incomplete = [name for name, _, is_capped in found if is_capped]
    rows = [
        (
            name,
            line.prefix,
            line.config_hash,
            capped(line.waiting, WAITING_CAP),
            format_age(line.next, now),
            format_age(line.last, now),
        )
        for name, line in lines
    ]
    shown = table(["~topic", "~prefix", "hash", "#waiting", "next", "?last"], rows)
    rest = [f"Topic {name} has more ticks than the list shows." for name in incomplete]
    document = {"ticks": [{"topic": name, **line._asdict()} for name, line in lines], "capped": incomplete}
    session.answer(document, shown, *rest, *([] if rows or rest else ["No tick waits."]))


@ticks.command(
    help="Install the missing ticks of PREFIX in TOPIC; repeat it before the last one is due. Ticks of the same prefix "
    "with another schedule are removed. TaskQTicksOperator with the same schedule makes the same ticks."
)
@topic_argument
@click.argument("prefix")
@click.option("--every", type=DURATION, help="A period, aligned to its boundary in UTC: 15m.")
@click.option("--daily", multiple=True, metavar="HH:MM", help="A time of day; repeat it for several ticks a day.")
@click.option("--cron", metavar="FIELDS", help="A cron expression of five fields, or @hourly and the like.")
@click.option("--zone", default="UTC", show_default=True, help="The time zone of --daily and --cron.")
@click.option("--ahead", type=DURATION, default="1d", show_default=True, help="How far ahead; at least the next tick.")
@click.option(
    "--catch-up",
    type=click.Choice(CATCH_UPS),
    default="none",
    show_default=True,
    help="Which ticks to install of those missed since the last installed one.",
)
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
    catch_up: CatchUp,
    payload: Json,
    dry_run: bool,
) -> None:
    task = RecurringTask(_schedule(every, daily, cron, zone), payload, None, ahead, catch_up)
    with session.transaction(dry_run=dry_run) as queue:
        schedule_hash, count, moments = task.install(queue, topic, prefix)
        audited(queue).record("install ticks", topic, f"{prefix}/{schedule_hash}", count)
    verb = "Would install" if dry_run else "Installed"
    sentence = f"{verb} {plural(count, 'tick')} of {prefix}/{schedule_hash}, up to {moments[-1]:%Y-%m-%d %H:%M %Z}."
    document = {"topic": topic, "prefix": prefix, "config_hash": schedule_hash, "installed": count}
    session.answer({**document, "last": moments[-1], "dry_run": dry_run}, sentence)


@ticks.command(help="Remove the waiting ticks of PREFIX and HASH from TOPIC. Running and ended ones stay.")
@topic_argument
@click.argument("prefix")
@click.argument("config_hash", metavar="HASH")
@dry_run_option
@click.pass_obj
def uninstall(session: Session, topic: str, prefix: str, config_hash: str, dry_run: bool) -> None:
    with session.transaction(dry_run=dry_run) as queue:
        count = queue.uninstall_ticks(topic, prefix, config_hash)
        audited(queue).record("uninstall ticks", topic, f"{prefix}/{config_hash}", count)
    sentence = f"{'Would remove' if dry_run else 'Removed'} {plural(count, 'tick')} of {prefix}/{config_hash}."
    document = {"topic": topic, "prefix": prefix, "config_hash": config_hash, "removed": count, "dry_run": dry_run}
    session.answer(document, sentence)


def _schedule(every: timedelta | None, daily: Sequence[str], cron: str | None, zone: str) -> Schedule:
    if (every is not None) + bool(daily) + (cron is not None) != 1:
        raise click.UsageError("give exactly one of --every, --daily and --cron")
    if every is not None:
        return Schedule.every(every)
    if cron is not None:
        return Schedule.cron(cron, zone)
    return Schedule.daily(list(map(_parse_hour, daily)), zone)


def _parse_hour(text: str) -> time:
    try:
        return time.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"invalid time of day {text!r}: expected for example 09:00") from None
