"""retry, reassign: what is done to tasks that have ended."""

from typing import Any

import click

from airflow_provider_taskq.cli._options import Choice, dry_run_option, topic_argument, yes_option
from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.cli.asking import ask, plural
from airflow_provider_taskq.cli.selection import Chosen, choose, selection_options
from airflow_provider_taskq.cli.trail import note
from airflow_provider_taskq.queue import Result, Revival

BY = tuple(Revival)
RESULTS = tuple(result.name for result in Result)
_WHICH = "those of these SEQUENCES, all or none; or those that the options choose."


@click.command(
    help=f"Start ended tasks of TOPIC anew: {_WHICH} RESET makes them READY themselves, in their old place; "
    "the other ways push copies by that insertion."
)
@topic_argument
@selection_options
@click.option("--by", type=Choice(BY), default="RESET", show_default=True, help="How they go on.")
@dry_run_option
@yes_option
@click.pass_obj
def retry(session: Session, /, topic: str, by: str, dry_run: bool, yes: bool, **chosen: Any) -> None:
    """Revives, after asking where the tasks were chosen rather than named."""
    found = _chosen(session, topic, "This starts {} anew.", chosen, sure=yes or dry_run)
    with session.acting(dry_run=dry_run) as queue:
        revived = queue.revive(topic, revival=Revival(by), **found.held(queue, topic))
        note(queue, "retry", topic, f"{found.what}, by {by}", len(revived))
    if not dry_run and revived:
        with session.acting() as queue:
            queue.wake(topic)
    said = f"{'Would start' if dry_run else 'Started'} {plural(len(revived), 'task')} of {topic} anew."
    # The numbers that a dry run has drawn for copies will not be theirs.
    pairs = [] if dry_run else [{"sequence": old, "goes_on_as": new} for old, new in revived.items()]
    document = {"topic": topic, "by": by, "revived": len(revived), "tasks": pairs, "more": found.more}
    session.answer({**document, "dry_run": dry_run}, said, *found.remark())


@click.command(help=f"Give ended tasks of TOPIC another result: {_WHICH} Their output stays.")
@topic_argument
@selection_options
@click.option("--result", type=Choice(RESULTS), required=True, help="The result that they get.")
@dry_run_option
@yes_option
@click.pass_obj
def reassign(session: Session, /, topic: str, result: str, dry_run: bool, yes: bool, **chosen: Any) -> None:
    """Reassigns, after asking where the tasks were chosen rather than named."""
    found = _chosen(session, topic, f"This makes {result} the result of {{}}.", chosen, sure=yes or dry_run)
    with session.acting(dry_run=dry_run) as queue:
        count = queue.reassign(topic, Result[result], **found.held(queue, topic))
        note(queue, "reassign", topic, f"{found.what}, to {result}", count)
    said = f"{'Would make' if dry_run else 'Made'} {result} the result of {plural(count, 'task')} of {topic}."
    document = {"topic": topic, "result": result, "reassigned": count, "more": found.more, "dry_run": dry_run}
    session.answer(document, said, *found.remark())


def _chosen(session: Session, topic: str, sentence: str, chosen: dict[str, Any], *, sure: bool) -> Chosen:
    """The tasks; a person is asked about those that were chosen rather than named."""
    with session.looking() as queue:
        found = choose(queue, topic, **chosen)
    if not chosen["named"] and found.count:
        ask(sentence.format(f"{plural(found.count, 'task')} of {topic}"), yes=sure)
    return found
