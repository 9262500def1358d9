"""topics partition: tables of their own for busy topics."""

from datetime import timedelta

import click

from airflow_provider_taskq.cli._options import DURATION, dry_run_option, topic_argument
from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.cli.asking import plural
from airflow_provider_taskq.cli.command_group import CommandGroup
from airflow_provider_taskq.cli.trail import note

_patience = click.option(
    "--patience", type=DURATION, default="1m", help="How long to wait for sessions that use the tables."
)


@click.group(cls=CommandGroup, help="Give a busy topic its own tables, or put it back into the shared ones.")
def partition() -> None:
    """Groups the commands."""


@partition.command(
    help="Move TOPIC to its own tables. Pauses it meanwhile. Finishes a move that was interrupted.",
)
@topic_argument
@_patience
@dry_run_option
@click.pass_obj
def own(session: Session, topic: str, patience: timedelta, dry_run: bool) -> None:
    """Moves the topic, and says whether that changed anything."""
    if dry_run:
        _say_what_would_move(session, topic, "its own tables")
        return
    with session.alone() as queue:
        moved = queue.own_partition(topic, patience)
    said = f"Topic {topic} has its own tables now." if moved else f"Topic {topic} has its own tables already."
    _tell(session, topic, "own", moved, said)


@partition.command(
    help="Move TOPIC back to the shared tables. All topics wait meanwhile. Undoes a move that was interrupted.",
)
@topic_argument
@click.option("--most", type=click.IntRange(min=0), default=1000, help="Refuse a topic with more tasks than this.")
@_patience
@dry_run_option
@click.pass_obj
def shared(session: Session, topic: str, most: int, patience: timedelta, dry_run: bool) -> None:
    """Moves the topic back, and says whether that changed anything."""
    if dry_run:
        _say_what_would_move(session, topic, "the shared tables")
        return
    with session.alone() as queue:
        moved = queue.shared_partition(topic, most, patience)
    said = f"Topic {topic} is in the shared tables{' again' if moved else ' already'}."
    _tell(session, topic, "shared", moved, said)


@partition.command(help="Drop the empty tables of topics that were dropped.")
@_patience
@dry_run_option
@click.pass_obj
def clean(session: Session, patience: timedelta, dry_run: bool) -> None:
    """Drops them, and says of how many topics."""
    if dry_run:
        said = "Would drop the empty tables of dropped topics."
        session.answer({"cleaned": None, "dry_run": True}, said)
        return
    with session.alone() as queue:
        count = queue.drop_vacant_partitions(patience)
    session.answer(
        {"cleaned": count, "dry_run": False}, f"Dropped the empty tables of {plural(count, 'dropped topic')}."
    )


def _say_what_would_move(session: Session, topic: str, where: str) -> None:
    """Says how many tasks a move concerns."""
    with session.looking() as queue:
        queue.policy(topic)
        count = queue.count_tasks(topic)
    said = f"Would move topic {topic} with {plural(count, 'task')} to {where}."
    session.answer({"topic": topic, "moved": False, "tasks": count, "dry_run": True}, said)


def _tell(session: Session, topic: str, where: str, moved: bool, said: str) -> None:
    """Enters a move in the trail, and answers."""
    if moved:
        with session.acting() as queue:
            note(queue, "partition", topic, f"to {where} tables", queue.count_tasks(topic))
    session.answer({"topic": topic, "moved": moved, "dry_run": False}, said)
