"""offer and drop: at most one waiting task per identifier."""

from typing import IO, Any

import click

from airflow_provider_taskq.cli._options import DURATION, MOMENT, Choice, dry_run_option, topic_argument
from airflow_provider_taskq.cli._output import table
from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.cli.asking import plural
from airflow_provider_taskq.cli.payload import payload_option
from airflow_provider_taskq.cli.push import tasks_given
from airflow_provider_taskq.cli.trail import note


@click.command(
    help="Offer tasks to TOPIC, at most one waiting task per IDENTIFIER: a task that waits is updated, or ignored. All "
    "IDENTIFIERS have the same options; a file has JSON lines, as for push. All offers are carried out, or none."
)
@topic_argument
@click.argument("identifiers", nargs=-1, metavar="[IDENTIFIER]...")
@click.option("--file", "-f", type=click.File(encoding="utf-8", lazy=True), help="JSON lines; - for stdin.")
@click.option(
    "--if-exists", type=Choice(("update", "ignore")), default="update", help="What becomes of a waiting task."
)
@payload_option
@click.option("--reference", help="What else it is known by.")
@click.option("--priority", type=click.IntRange(-100, 100), default=0, help="-100 to 100, higher first.")
@click.option("--delay", type=DURATION, help="Due after this long.")
@click.option("--at", type=MOMENT, help="Due at this moment.")
@click.option("--ttl", type=DURATION, help="While it is younger, failures are not noted.")
@dry_run_option
@click.pass_obj
def offer(
    session: Session,
    /,
    topic: str,
    identifiers: tuple[str, ...],
    file: IO[str] | None,
    if_exists: str,
    dry_run: bool,
    **fields: Any,
) -> None:
    """Offers, then wakes the watchers of the topic."""
    tasks = list(tasks_given(identifiers, file, fields))
    with session.acting(dry_run=dry_run) as queue:
        offered = queue.offer_many(topic, tasks, if_exists=if_exists)
        note(queue, "offer", topic, f"if exists: {if_exists}", len(offered))
    if not dry_run:
        with session.acting() as queue:  # after the commit, so that the watchers see it
            queue.wake(topic)
    found = [
        {"sequence": each.sequence, "identifier": task.identifier, "outcome": each.outcome}
        for task, each in zip(tasks, offered, strict=True)
    ]
    rows = [(str(each["sequence"]), each["identifier"], each["outcome"]) for each in found]
    said = f"{'Would offer' if dry_run else 'Offered'} {plural(len(found), 'task')} to {topic}."
    parts = [] if dry_run else [table(["#sequence", "~identifier", "outcome"], rows)]
    document = {"topic": topic, "offered": len(found), "tasks": [] if dry_run else found, "dry_run": dry_run}
    session.answer(document, *parts, said)


@click.command(help="Remove what waits in TOPIC under IDENTIFIER. Tasks that are held or have ended stay.")
@topic_argument
@click.argument("identifier")
@dry_run_option
@click.pass_obj
def drop(session: Session, /, topic: str, identifier: str, dry_run: bool) -> None:
    """Drops."""
    with session.acting(dry_run=dry_run) as queue:
        dropped = queue.drop(topic, identifier)
        note(queue, "drop", topic, f"identifier {identifier}", int(dropped))
    done = "Would drop" if dry_run else "Dropped"
    said = f"{done} {identifier} from {topic}." if dropped else f"Nothing waits in {topic} under {identifier}."
    session.answer({"topic": topic, "identifier": identifier, "dropped": dropped, "dry_run": dry_run}, said)
