"""pause, resume: whether topics hand anything out."""

import click

from airflow_provider_taskq.cli._options import TOPIC, dry_run_option
from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.cli.trail import note

_topics = click.argument("topics", nargs=-1, required=True, type=TOPIC, metavar="TOPIC...")


@click.command(help="Let topics hand out nothing. They take pushes and completions all the same.")
@_topics
@dry_run_option
@click.pass_obj
def pause(session: Session, topics: tuple[str, ...], dry_run: bool) -> None:
    """Pauses all of them, or none."""
    _set(session, topics, paused=True, dry_run=dry_run)


@click.command(help="Let paused topics hand out tasks again.")
@_topics
@dry_run_option
@click.pass_obj
def resume(session: Session, topics: tuple[str, ...], dry_run: bool) -> None:
    """Resumes all of them, or none."""
    _set(session, topics, paused=False, dry_run=dry_run)


def _set(session: Session, topics: tuple[str, ...], *, paused: bool, dry_run: bool) -> None:
    """Pauses or resumes, and says of each topic whether that changed it."""
    with session.acting(dry_run=dry_run) as queue:
        verb = queue.pause_topic if paused else queue.resume_topic
        changed = {topic: verb(topic) for topic in topics}
        for topic, new in changed.items():
            if new:
                note(queue, "pause" if paused else "resume", topic, "the topic", 1)
    if not paused and not dry_run:
        with session.acting() as queue:
            for topic in changed:
                queue.wake(topic)
    word = "paused" if paused else "resumed"
    already = "was paused already" if paused else "was not paused"
    would = "would be " if dry_run else ""
    said = [f"{topic}: {would + word if new else already}" for topic, new in changed.items()]
    document = [{"topic": topic, "changed": new} for topic, new in changed.items()]
    session.answer({"paused": paused, "topics": document, "dry_run": dry_run}, *said)
