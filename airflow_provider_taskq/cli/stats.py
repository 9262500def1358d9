"""stats: how many tasks there are, and what ended lately."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import click

from airflow_provider_taskq.cli._options import TOPIC
from airflow_provider_taskq.cli._output import table
from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.cli.glance import glances
from airflow_provider_taskq.cli.throughput import Lately, lately
from airflow_provider_taskq.cli.words import in_words
from airflow_provider_taskq.queue import Count, State

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
        seen = [queue.browse_topic(topic)] if topic is not None else glances(queue)
        oldest = {one.topic: one.oldest_seconds for one in seen if one is not None}
        hour, day = lately(queue, HOUR, topic), lately(queue, DAY, topic)
    document = [_document(name, states, oldest.get(name), hour, day) for name, states in counts.items()]
    used = {state for states in counts.values() for state in states}.union(_ALWAYS)
    rows = [_row(name, states, used, oldest.get(name), hour, day) for name, states in counts.items()]
    states = [f"{'#' if state in _ALWAYS else '?#'}{state.name}" for state in State]
    columns = ["~topic", *states, "#oldest due", "#last hour", "#% failed", "?#last day", "?#% failed"]
    session.answer({"topics": document}, table(columns, rows) if rows else "There are no topics.")


Spans = Mapping[str, Lately]


def _document(topic: str, states: Mapping[State, Count], oldest: int | None, hour: Spans, day: Spans) -> dict[str, Any]:
    """A topic by stable keys: every state has one."""
    return {
        "topic": topic,
        "counts": {state.name: states[state].count if state in states else 0 for state in State},
        "oldest_due_seconds": oldest,
        "hour": hour.get(topic, Lately()).document(),
        "day": day.get(topic, Lately()).document(),
    }


def _row(
    topic: str, states: Mapping[State, Count], used: set[State], oldest: int | None, hour: Spans, day: Spans
) -> list[object]:
    """A topic in a line; a state that no topic uses is left blank."""
    counts: Iterator[object] = (
        str(states[state].count if state in states else 0) if state in used else "" for state in State
    )
    waited = None if oldest is None else timedelta(seconds=oldest)
    return [topic, *counts, in_words(waited), *hour.get(topic, Lately()).cells(), *day.get(topic, Lately()).cells()]
