"""taskq watch: the topics and the health findings, live."""

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import click
import psycopg
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from airflow_provider_taskq.cli._options import COUNT, DURATION, search_option
from airflow_provider_taskq.cli._output import STYLES, console, json_text, sanitize, show, table
from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.cli.stats import RecentCounts, recent_counts
from airflow_provider_taskq.cli.topics import TOPIC_COLUMNS, summary_document, summary_rows
from airflow_provider_taskq.queue import HealthFinding, Row, Severity, TaskQueue, TaskQueueError

MINUTE = timedelta(minutes=1)
MAX_TOPICS = 100  # of one snapshot
OTHER_LINES = 8  # of a terminal, for anything but topics


@dataclass(frozen=True, slots=True)
class TopicsSnapshot:
    """The topics and the findings at one moment."""

    as_of: datetime
    topics: list[Row]
    more: bool
    minute: Mapping[str, RecentCounts]
    findings: list[HealthFinding]

    def document(self) -> dict[str, Any]:
        """Return the snapshot as a document, for one line of JSON."""
        return {
            "as_of": self.as_of,
            "topics": [
                {**summary_document(one), "minute": self.minute.get(one.topic, RecentCounts()).document()}
                for one in self.topics
            ],
            "more": self.more,
            "findings": [
                {
                    "severity": found.severity.name,
                    "subject": found.subject,
                    "detail": found.detail,
                    "pid": found.pid,
                    "remedy": found.remedy,
                }
                for found in self.findings
            ],
        }

    def parts(self, lines: int | None = None) -> Iterator[RenderableType]:
        """Yield the snapshot for a terminal, with at most `lines` topics."""
        shown = self.topics[:lines]
        minutes = (self.minute.get(one.topic, RecentCounts()).cells() for one in shown)
        rows = [(*row, *minute) for row, minute in zip(summary_rows(shown), minutes, strict=True)]
        yield Text(f"{self.as_of:%Y-%m-%d %H:%M:%S %Z}", "dim")
        yield table([*TOPIC_COLUMNS, "?#last minute", "?#% failed"], rows) if rows else Text("There are no topics.")
        if self.more or len(shown) < len(self.topics):
            yield Text("More topics exist: use --search to select some.", "dim")
        for found in self.findings:
            yield Text(sanitize(f"{found.severity.name} {found.subject}: {found.detail}"), STYLES[found.severity.name])


@dataclass(frozen=True, slots=True)
class Failure:
    """An error that prevented a snapshot."""

    reason: str

    def document(self) -> dict[str, Any]:
        """Return the error as a document."""
        return {"error": self.reason}

    def parts(self, lines: int | None = None) -> Iterator[RenderableType]:  # noqa: ARG002  like TopicsSnapshot.parts
        """Yield the error for a terminal."""
        yield Text(sanitize(f"No answer, trying again: {self.reason}"), STYLES["WARNING"])


@click.command(
    help="Watch the topics live: tasks by status, tasks that ended within the last minute, and health findings. Ctrl-C "
    "ends it. Without a terminal, each snapshot is printed below the last; with --json, one line each."
)
@search_option
@click.option("--interval", type=DURATION, default="2s", show_default=True, help="The time between two snapshots.")
@click.option("--looks", type=COUNT, help="End after this number of snapshots.")
@click.pass_obj
def watch(session: Session, search: str | None, interval: timedelta, looks: int | None) -> None:
    with _interruptible(), _display(session) as display:
        for number, snapshot in enumerate(_snapshots(session, search), start=1):
            display(snapshot)
            if number == looks:
                return
            time.sleep(max(0.1, interval.total_seconds()))  # the time between two snapshots that the user chose


def _snapshots(session: Session, search: str | None) -> Iterator[TopicsSnapshot | Failure]:
    """Yield snapshots without end.

    An error of the first connection ends the program. A later error is yielded as a Failure.
    """
    yield from _snapshots_of_connection(session, search)
    while True:
        try:
            yield from _snapshots_of_connection(session, search)
        except (TaskQueueError, click.ClickException) as error:
            yield Failure(str(error))


def _snapshots_of_connection(session: Session, search: str | None) -> Iterator[TopicsSnapshot | Failure]:
    """Yield snapshots until the connection is lost.

    No transaction stays open between two snapshots, because an open transaction holds back vacuum.
    """
    with session.read_only_calls() as queue:
        while True:
            try:
                snapshot = _snapshot(queue, search)
            except psycopg.OperationalError as error:
                yield Failure((str(error).strip().splitlines() or ["the connection is lost"])[0])
                return
            yield snapshot


def _snapshot(queue: TaskQueue, search: str | None) -> TopicsSnapshot:
    findings = [finding for finding in queue.health() if finding.severity >= Severity.WARNING]
    topics = queue.browse_topics(search, size=MAX_TOPICS + 1)
    return TopicsSnapshot(
        queue.now(), topics[:MAX_TOPICS], len(topics) > MAX_TOPICS, recent_counts(queue, MINUTE), findings
    )


@contextmanager
def _display(session: Session) -> Iterator[Callable[[TopicsSnapshot | Failure], None]]:
    """Yield a function that shows snapshots: live on a terminal, else one below the other."""
    if session.json:
        yield lambda snapshot: click.echo(json_text(snapshot.document(), lines=False))
        return
    on = console()
    if not on.is_terminal:
        yield lambda snapshot: _print(on, snapshot)
        return
    with Live(console=on, auto_refresh=False, vertical_overflow="crop") as live:
        yield lambda snapshot: live.update(Group(*snapshot.parts(max(1, on.height - OTHER_LINES))), refresh=True)


def _print(on: Console, snapshot: TopicsSnapshot | Failure) -> None:
    show(on, *snapshot.parts())
    on.file.flush()  # a pipe gets each snapshot at once


@contextmanager
def _interruptible() -> Iterator[None]:
    """End the command on Ctrl-C and SIGTERM, with the terminal restored and exit code 0."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)
