"""errors: the failures of a topic, grouped by error."""

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime

import click

from airflow_provider_taskq.cli._options import TOPIC
from airflow_provider_taskq.cli._output import table
from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.cli.glance import glances
from airflow_provider_taskq.cli.words import ago
from airflow_provider_taskq.queue import ErrorGroup, TaskQueue

BUDGET = 10_000  # FAILED tasks that are looked at, of each topic
COLUMNS = ("~topic", "#failed", "#retrying", "=error", "?#messages", "?#newest", "?last")


@click.command(
    help="Group the failures of TOPIC, or of each topic, by error. The summaries of a group differ only in identifiers "
    "and numbers, written as #. Looks at the newest 10,000 tasks that FAILED."
)
@click.argument("topic", required=False, type=TOPIC)
@click.option(
    "--size", "-n", type=click.IntRange(1, 1000), default=20, show_default=True, help="The most groups to list."
)
@click.pass_obj
def errors(session: Session, topic: str | None, size: int) -> None:
    """Shows a line a group."""
    with session.looking() as queue:
        now = queue.now()
        found = {name: queue.error_groups(name, size, budget=BUDGET) for name in _topics(queue, topic)}
    groups = [(name, group) for name, of_topic in found.items() for group in of_topic]
    rows = [_row(name, group, now) for name, group in groups]
    document = [{"topic": name, **asdict(group)} for name, group in groups]
    if not rows:
        session.answer({"errors": document}, "No task has failed.")
        return
    session.answer({"errors": document}, table(COLUMNS, rows), *_remarks(groups))


def _topics(queue: TaskQueue, topic: str | None) -> list[str]:
    """The topic that is named, else those with failures."""
    return [one.topic for one in glances(queue)] if topic is None else [topic]


def _row(topic: str, group: ErrorGroup, now: datetime) -> tuple[object, ...]:
    """In the order of COLUMNS."""
    last = "" if group.last_failed is None else ago(group.last_failed, now)
    return topic, group.failed, group.retrying or "", group.error, group.messages, group.newest, last


def _remarks(groups: list[tuple[str, ErrorGroup]]) -> Iterator[str]:
    """How to retry the first group that can be, and what was not looked at."""
    first = next(((name, group) for name, group in groups if group.failed), None)
    if first is not None:
        name, group = first
        command = f"taskq retry {shlex.quote(name)} --state FAILED --error-group {shlex.quote(group.error)}"
        yield f"To retry a group: {command}"
    for name in dict.fromkeys(name for name, group in groups if group.looked_at >= BUDGET):
        yield f"Of {name} only the newest {BUDGET:,} FAILED tasks were looked at."
