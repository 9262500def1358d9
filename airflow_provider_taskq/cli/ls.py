"""ls: tasks of a topic."""

from datetime import datetime, timedelta

import click

from airflow_provider_taskq.cli._options import MOMENT, SEQUENCE, STATES, Choice, topic_argument
from airflow_provider_taskq.cli._output import table
from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.cli.finding import page_of
from airflow_provider_taskq.cli.selection import error_group_option
from airflow_provider_taskq.cli.tasks import COLUMNS, task_document, task_row
from airflow_provider_taskq.cli.words import moment_at
from airflow_provider_taskq.queue import State
from airflow_provider_taskq.queue.reports import STATUSES, TaskFilter


@click.command(
    help="List tasks of TOPIC, the newest first. Payloads are not shown; show --payload has them. "
    "Where there are more, the next page is the same command with --after."
)
@topic_argument
@click.option("--state", "-s", type=Choice(STATES), help="In this state.")
@click.option(
    "--status",
    type=Choice((*STATUSES, "exhausted")),
    help="Of this status, as the list shows it; exhausted: failed, with no attempts left.",
)
@click.option("--identifier", "-i", help="Of this identifier.")
@click.option("--reference", "-r", help="Of this reference.")
@click.option("--error", help="Whose error holds this text, in any case.")
@error_group_option
@click.option("--since", type=MOMENT, help="Pushed since this moment: 2026-11-21T09:30, or 2h for 2 hours ago.")
@click.option("--until", type=MOMENT, help="Pushed at this moment or before.")
@click.option("--after", type=SEQUENCE, help="Beyond this sequence, where the page before ended.")
@click.option("--size", "-n", type=click.IntRange(1, 10_000), default=20, show_default=True, help="At most so many.")
@click.option("--oldest", is_flag=True, help="The oldest first.")
@click.pass_obj
def ls(
    session: Session,
    topic: str,
    state: str | None,
    status: str | None,
    identifier: str | None,
    reference: str | None,
    error: str | None,
    error_group: str | None,
    since: datetime | timedelta | None,
    until: datetime | timedelta | None,
    after: int | None,
    size: int,
    oldest: bool,
) -> None:
    """Shows a page."""
    wanted = None if state is None else State[state]
    with session.looking() as queue:
        now = queue.now()
        span = (moment_at(since, now), moment_at(until, now))
        given = TaskFilter(wanted, status, identifier, reference, *span, error, error_group)
        page = page_of(queue, topic, given, size, after=after, newest=not oldest)
    document = {"tasks": [task_document(task) for task in page.tasks], "next": page.next, "stopped": page.stopped}
    rows = [task_row(task, now) for task in page.tasks]
    parts = [table(COLUMNS, rows)] if rows else []
    session.answer(document, *parts, *_remarks(len(rows), page.next, page.stopped))


def _remarks(count: int, beyond: int | None, stopped: bool) -> list[str]:
    """What stands below the table."""
    if beyond is None:
        return [] if count else ["No task is so."]
    reason = "Looked no further than" if stopped else "There is more beyond"
    return [f"{reason} {beyond}: --after {beyond} goes on."]
