"""watch: the topics, live."""

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

from airflow_provider_taskq.cli._options import COUNT, DURATION
from airflow_provider_taskq.cli._output import STYLES, console, json_text, sanitize, show, table
from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.cli.stats import RecentCounts, recent_counts
from airflow_provider_taskq.cli.topics import TOPIC_COLUMNS, summary_document, summary_rows
from airflow_provider_taskq.queue import HealthFinding, Severity, TaskQueue, TaskQueueError
from airflow_provider_taskq.queue.reports import TopicSummary

MINUTE = timedelta(minutes=1)
TOPICS = 100  # that a look tells of
AROUND = 8  # lines of a terminal that are not a topic's


@dataclass(frozen=True, slots=True)
class Look:
    """What one look saw."""

    as_of: datetime
    topics: list[TopicSummary]
    more: bool
    minute: Mapping[str, RecentCounts]
    findings: list[HealthFinding]

    def document(self) -> dict[str, Any]:
        """By stable keys, to be written on one line."""
        return {
            "as_of": self.as_of,
            "topics": [
                {**summary_document(one), "minute": self.minute.get(one.topic, RecentCounts()).document()}
                for one in self.topics
            ],
            "more": self.more,
            "findings": [
                {"severity": found.severity.name, "subject": found.subject, "detail": found.detail, "pid": found.pid}
                for found in self.findings
            ],
        }

    def parts(self, lines: int | None = None) -> Iterator[RenderableType]:
        """As a person sees it, in at most so many lines for topics."""
        shown = self.topics[:lines]
        minutes = (self.minute.get(one.topic, RecentCounts()).cells() for one in shown)
        rows = [(*row, *minute) for row, minute in zip(summary_rows(shown), minutes, strict=True)]
        yield Text(f"{self.as_of:%Y-%m-%d %H:%M:%S %Z}", "dim")
        yield table([*TOPIC_COLUMNS, "?#last minute", "?#% failed"], rows) if rows else Text("There are no topics.")
        if self.more or len(shown) < len(self.topics):
            yield Text("There are more topics: --search chooses among them.", "dim")
        for found in self.findings:
            yield Text(sanitize(f"{found.severity.name} {found.subject}: {found.detail}"), STYLES[found.severity.name])


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why there was nothing to see."""

    reason: str

    def document(self) -> dict[str, Any]:
        """By the key that every error has."""
        return {"error": self.reason}

    def parts(self, lines: int | None = None) -> Iterator[RenderableType]:  # noqa: ARG002  as a look's
        """As a person sees it."""
        yield Text(sanitize(f"No answer, looking again: {self.reason}"), STYLES["WARNING"])


@click.command(
    help="Watch the topics live: what is due, held and failed, what ended within the last minute, and what slows the "
    "queue. Ctrl-C ends it. Without a terminal, each look is printed below the last; with --json, a line each."
)
@click.option("--search", metavar="TEXT", help="Only topics whose name holds this, in any case.")
@click.option("--interval", type=DURATION, default="2s", show_default=True, help="How long to wait between two looks.")
@click.option("--looks", type=COUNT, help="End after so many looks.")
@click.pass_obj
def watch(session: Session, search: str | None, interval: timedelta, looks: int | None) -> None:
    """Looks, shows and waits, until it is told to end."""
    with _ends_quietly(), _shown(session) as showing:
        for number, seen in enumerate(_looks(session, search), start=1):
            showing(seen)
            if number == looks:
                return
            time.sleep(max(0.1, interval.total_seconds()))  # between two looks, as long as was asked for


def _looks(session: Session, search: str | None) -> Iterator[Look | Trouble]:
    """Looks, again and again, or why there is none. What is wrong at the very first is an error of this program."""
    yield from _through_one(session, search)
    while True:
        try:
            yield from _through_one(session, search)
        except (TaskQueueError, click.ClickException) as error:
            yield Trouble(str(error))


def _through_one(session: Session, search: str | None) -> Iterator[Look | Trouble]:
    """Looks through one connection, until it is lost. Nothing stays open between two looks, to keep vacuum back."""
    with session.alone(read_only=True) as queue:
        while True:
            try:
                seen = _look(queue, search)
            except psycopg.OperationalError as error:
                yield Trouble((str(error).strip().splitlines() or ["the connection is lost"])[0])
                return
            yield seen


def _look(queue: TaskQueue, search: str | None) -> Look:
    """Looks once."""
    findings = [finding for finding in queue.health() if finding.severity >= Severity.WARNING]
    topics = queue.browse_topics(search, size=TOPICS + 1)
    return Look(queue.now(), topics[:TOPICS], len(topics) > TOPICS, recent_counts(queue, MINUTE), findings)


@contextmanager
def _shown(session: Session) -> Iterator[Callable[[Look | Trouble], None]]:
    """How looks are shown: live on a terminal, else one below the other."""
    if session.json:
        yield lambda look: click.echo(json_text(look.document(), lines=False))
        return
    on = console()
    if not on.is_terminal:
        yield lambda look: _print(on, look)
        return
    with Live(console=on, auto_refresh=False, vertical_overflow="crop") as live:
        yield lambda look: live.update(Group(*look.parts(max(1, on.height - AROUND))), refresh=True)


def _print(on: Console, look: Look | Trouble) -> None:
    """Prints a look below the last, at once also into a pipe."""
    show(on, *look.parts())
    on.file.flush()


@contextmanager
def _ends_quietly() -> Iterator[None]:
    """Ctrl-C and SIGTERM are how a watch ends: the terminal is put right, and the exit code is 0."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)
