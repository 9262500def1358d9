"""taskq stats, errors: counts by state, throughput and groups of failures."""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any

import click

from airflow_provider_taskq.cli._durations import format_age, format_duration
from airflow_provider_taskq.cli._options import TOPIC
from airflow_provider_taskq.cli._output import table
from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.cli.topics import summaries
from airflow_provider_taskq.queue import Count, ErrorGroup, State, TaskQueue


@dataclass(slots=True)
class RecentCounts:
    """How many tasks of a topic ended within a span, by state; `sampled` is the share of the history that was read."""

    states: Counter[State] = field(default_factory=Counter)
    sampled: float = 1.0

    @property
    def ended(self) -> int:
        """All that ended."""
        return self.states.total()

    @property
    def failure_rate(self) -> float | None:
        """The share that FAILED of all that ended, 0 to 1, as the page and health tell it; None where nothing ended."""
        return self.states[State.FAILED] / self.ended if self.ended else None

    def document(self) -> dict[str, Any]:
        """By stable keys."""
        return {
            "ended": self.ended,
            "succeeded": self.states[State.SUCCEEDED],
            "failed": self.states[State.FAILED],
            "failure_rate": self.failure_rate,
            "sampled": self.sampled,
        }

    def cells(self) -> tuple[str, str]:
        """How many, about how many where that is an estimate, and the share that failed."""
        if not self.ended:
            return "0", ""
        about = "~" if self.sampled < 1 else ""
        return f"{about}{self.ended:,}", f"{self.failure_rate:.1%}"


def recent_counts(queue: TaskQueue, span: timedelta, topic: str | None = None) -> Mapping[str, RecentCounts]:
    """What ended within the span up to now, by topic; topics without any are left out."""
    found: dict[str, RecentCounts] = {}
    for ended in queue.throughput(span, 1, topic):
        of_topic = found.setdefault(ended.topic, RecentCounts())
        of_topic.states[ended.state] += ended.count
        of_topic.sampled = min(of_topic.sampled, ended.sampled)
    return found


HOUR, DAY = timedelta(hours=1), timedelta(days=1)
_ALWAYS = (State.READY, State.FAILED, State.SUCCEEDED)  # in a table, also where there is little room


@click.command(
    help="Count the tasks of TOPIC, or of each topic, by state, and what ended in the last hour and day, with the share"
    " that FAILED. The counts are exact, and read all there is; what ended is an estimate (~) where it is much."
)
@click.argument("topic", required=False, type=TOPIC)
@click.pass_obj
def stats(session: Session, topic: str | None) -> None:
    """Counts, and shows a line a topic."""
    with session.looking() as queue:
        if topic is not None:
            queue.policy(topic)  # an unknown topic is an error, not one without tasks
        counts = queue.count(topic)
        seen = [queue.browse_topic(topic)] if topic is not None else summaries(queue)
        oldest = {one.topic: one.oldest_seconds for one in seen if one is not None}
        hour, day = recent_counts(queue, HOUR, topic), recent_counts(queue, DAY, topic)
    document = [_stats_row(name, states, oldest.get(name), hour, day) for name, states in counts.items()]
    used = {state for states in counts.values() for state in states}.union(_ALWAYS)
    rows = [_stats_cells(name, states, used, oldest.get(name), hour, day) for name, states in counts.items()]
    states = [f"{'#' if state in _ALWAYS else '?#'}{state.name}" for state in State]
    columns = ["~topic", *states, "#oldest due", "#last hour", "#% failed", "?#last day", "?#% failed"]
    session.answer({"topics": document}, table(columns, rows) if rows else "There are no topics.")


Spans = Mapping[str, RecentCounts]


def _stats_row(
    topic: str, states: Mapping[State, Count], oldest: int | None, hour: Spans, day: Spans
) -> dict[str, Any]:
    """A topic by stable keys: every state has one."""
    return {
        "topic": topic,
        "counts": {state.name: states[state].count if state in states else 0 for state in State},
        "oldest_due_seconds": oldest,
        "hour": hour.get(topic, RecentCounts()).document(),
        "day": day.get(topic, RecentCounts()).document(),
    }


def _stats_cells(
    topic: str, states: Mapping[State, Count], used: set[State], oldest: int | None, hour: Spans, day: Spans
) -> list[object]:
    """A topic in a line; a state that no topic uses is left blank."""
    counts: Iterator[object] = (
        str(states[state].count if state in states else 0) if state in used else "" for state in State
    )
    waited = None if oldest is None else timedelta(seconds=oldest)
    return [
        topic,
        *counts,
        format_duration(waited),
        *hour.get(topic, RecentCounts()).cells(),
        *day.get(topic, RecentCounts()).cells(),
    ]


BUDGET = 10_000  # FAILED tasks that are looked at, of each topic
ERROR_COLUMNS = ("~topic", "#failed", "#retrying", "=error", "?#messages", "?#newest", "?last")


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
        found = {name: queue.error_groups(name, size, budget=BUDGET) for name in _topics_with_failures(queue, topic)}
    groups = [(name, group) for name, of_topic in found.items() for group in of_topic]
    rows = [_error_row(name, group, now) for name, group in groups]
    document = [{"topic": name, **asdict(group)} for name, group in groups]
    if not rows:
        session.answer({"errors": document}, "No task has failed.")
        return
    session.answer({"errors": document}, table(ERROR_COLUMNS, rows), *_error_remarks(groups))


def _topics_with_failures(queue: TaskQueue, topic: str | None) -> list[str]:
    """The topic that is named, else those with failures."""
    return [one.topic for one in summaries(queue)] if topic is None else [topic]


def _error_row(topic: str, group: ErrorGroup, now: datetime) -> tuple[object, ...]:
    """In the order of ERROR_COLUMNS."""
    last = "" if group.last_failed is None else format_age(group.last_failed, now)
    return topic, group.failed, group.retrying or "", group.error, group.messages, group.newest, last


def _error_remarks(groups: list[tuple[str, ErrorGroup]]) -> Iterator[str]:
    """How to retry the first group that can be, and what was not looked at."""
    first = next(((name, group) for name, group in groups if group.failed), None)
    if first is not None:
        name, group = first
        command = f"taskq retry {shlex.quote(name)} --state FAILED --error-group {shlex.quote(group.error)}"
        yield f"To retry a group: {command}"
    for name in dict.fromkeys(name for name, group in groups if group.looked_at >= BUDGET):
        yield f"Of {name} only the newest {BUDGET:,} FAILED tasks were looked at."
