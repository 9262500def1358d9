"""taskq stats, errors: counts by state, recent throughput and groups of failures."""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import click

from airflow_provider_taskq.cli._options import optional_topic_argument
from airflow_provider_taskq.cli._output import table
from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.cli._times import format_age, format_duration
from airflow_provider_taskq.queue import Count, Row, State, TaskQueue

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
ERRORS_BUDGET = 10_000  # FAILED tasks of a topic that `taskq errors` reads
ERROR_COLUMNS = ("~topic", "#failed", "#retrying", "=error", "?#messages", "?#newest", "?last")
_MAIN_STATES = (State.READY, State.FAILED, State.SUCCEEDED)  # columns that a narrow terminal keeps


@dataclass(slots=True)
class RecentCounts:
    """Tasks of a topic that ended recently, by state. `sampled` is the share of the history that was read."""

    states: Counter[State] = field(default_factory=Counter)
    sampled: float = 1.0

    @property
    def ended(self) -> int:
        """The number of tasks that ended."""
        return self.states.total()

    @property
    def failure_rate(self) -> float | None:
        """The share of FAILED tasks, 0 to 1, as on the page and in `taskq health`; None if no task ended."""
        return self.states[State.FAILED] / self.ended if self.ended else None

    def document(self) -> dict[str, Any]:
        """Return the counts as a document."""
        return {
            "ended": self.ended,
            "succeeded": self.states[State.SUCCEEDED],
            "failed": self.states[State.FAILED],
            "failure_rate": self.failure_rate,
            "sampled": self.sampled,
        }

    def cells(self) -> tuple[str, str]:
        """Return the number of ended tasks, with ~ if the number is an estimate, and the share of FAILED tasks."""
        if not self.ended:
            return "0", ""
        return f"{'~' if self.sampled < 1 else ''}{self.ended:,}", f"{self.failure_rate:.1%}"


def recent_counts(queue: TaskQueue, span: timedelta, topic: str | None = None) -> Mapping[str, RecentCounts]:
    """Return the tasks that ended within the last span, by topic. Leave out topics without such tasks."""
    found: dict[str, RecentCounts] = {}
    for ended in queue.throughput(span, 1, topic):
        counts = found.setdefault(ended.topic, RecentCounts())
        counts.states[ended.state] += ended.count
        counts.sampled = min(counts.sampled, ended.sampled)
    return found


@click.command(
    help="Count the tasks of TOPIC, or of each topic, by state. Also count those that ended in the last hour and day, "
    "with the share of FAILED ones. Counts by state are exact and read all tasks. Recent counts with ~ are estimates."
)
@optional_topic_argument
@click.pass_obj
def stats(session: Session, topic: str | None) -> None:
    with session.read_only() as queue:
        if topic is not None:
            queue.policy(topic)  # raises for an unknown topic, which would look empty
        counts = queue.count(topic)
        oldest = queue.oldest_due()
        hour, day = recent_counts(queue, HOUR, topic), recent_counts(queue, DAY, topic)
    none = RecentCounts()
    document = [
        {
            "topic": name,
            "counts": {state.name: states[state].count if state in states else 0 for state in State},
            "oldest_due_seconds": int(oldest[name].total_seconds()) if name in oldest else None,
            "hour": hour.get(name, none).document(),
            "day": day.get(name, none).document(),
        }
        for name, states in counts.items()
    ]
    shown = {state for states in counts.values() for state in states}.union(_MAIN_STATES)
    rows = [
        [
            name,
            *_state_cells(states, shown),
            format_duration(oldest.get(name)),
            *hour.get(name, none).cells(),
            *day.get(name, none).cells(),
        ]
        for name, states in counts.items()
    ]
    state_columns = [f"{'#' if state in _MAIN_STATES else '?#'}{state.name}" for state in State]
    columns = ["~topic", *state_columns, "#oldest due", "#last hour", "#% failed", "?#last day", "?#% failed"]
    session.answer({"topics": document}, table(columns, rows) if rows else "There are no topics.")


def _state_cells(states: Mapping[State, Count], shown: set[State]) -> Iterator[str]:
    """Yield the count of each state. Yield an empty text for a state that no topic uses, to leave its column out."""
    for state in State:
        yield str(states[state].count if state in states else 0) if state in shown else ""


@click.command(
    help="Group the failures of TOPIC, or of each topic, by error. The summaries of a group differ only in identifiers "
    "and numbers, written as #. Reads the newest 10,000 FAILED tasks."
)
@optional_topic_argument
@click.option(
    "--size", "-n", type=click.IntRange(1, 1000), default=20, show_default=True, help="The most groups to list."
)
@click.pass_obj
def errors(session: Session, topic: str | None, size: int) -> None:
    with session.read_only() as queue:
        now = queue.now()
        topics = queue.topics() if topic is None else [topic]
        groups = [(name, group) for name in topics for group in queue.error_groups(name, size, budget=ERRORS_BUDGET)]
    document = {"errors": [{"topic": name, **group._asdict()} for name, group in groups]}
    if not groups:
        session.answer(document, "No task has failed.")
        return
    rows = [_error_row(name, group, now) for name, group in groups]
    session.answer(document, table(ERROR_COLUMNS, rows), *_error_hints(groups))


def _error_row(topic: str, group: Row, now: datetime) -> tuple[object, ...]:
    last = format_age(group.last_failed, now)
    return topic, group.failed, group.retrying or "", group.error, group.messages, group.newest, last


def _error_hints(groups: list[tuple[str, Row]]) -> Iterator[str]:
    """Yield the command that retries the first group with FAILED tasks, and the topics that were read in part."""
    first = next(((name, group) for name, group in groups if group.failed), None)
    if first is not None:
        name, group = first
        command = f"taskq retry {shlex.quote(name)} --state FAILED --error-group {shlex.quote(group.error)}"
        yield f"To retry a group: {command}"
    for name in dict.fromkeys(name for name, group in groups if group.looked_at >= ERRORS_BUDGET):
        yield f"Only the newest {ERRORS_BUDGET:,} FAILED tasks of {name} were read."
