"""Topics at a glance."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from airflow_provider_taskq.cli.words import in_words
from airflow_provider_taskq.queue import TaskQueue
from airflow_provider_taskq.queue.reports import TopicGlance

MOST = 1_000  # tasks that a count goes to
PAGE = 500  # topics a call

COLUMNS = (
    *("~topic", "#ready", "?#scheduled", "?#retrying", "?#blocked", "?#paused", "#running", "#failed"),
    *("?#suspended", "?#expired", "?#owners"),
    *("#oldest due", "?#last end"),
)


def glances(queue: TaskQueue, search: str | None = None) -> Iterator[TopicGlance]:
    """All topics, or those whose name holds this, by name."""
    after: str | None = None
    while True:
        page = queue.browse_topics(search, after=after, size=PAGE, cap=MOST)
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].topic


def glance_document(one: TopicGlance) -> dict[str, Any]:
    """By stable keys; counts that are `capped_at` stopped there."""
    return {**asdict(one), "capped_at": MOST}


def glance_rows(found: Sequence[TopicGlance]) -> list[list[object]]:
    """In the order of COLUMNS; one that may be left out is empty where no topic has anything to say in it."""
    rows = [_row(one) for one in found]
    needless = {
        place
        for place, name in enumerate(COLUMNS)
        if name.startswith("?#") and all(row[place] in ("0", "") for row in rows)
    }
    return [["" if place in needless else cell for place, cell in enumerate(row)] for row in rows]


def _row(one: TopicGlance) -> tuple[object, ...]:
    waiting = (one.ready, one.scheduled, one.retrying, one.blocked, one.paused_tasks)
    counts = (*waiting, one.running, one.failed, one.suspended, one.expired)
    name = f"{one.topic} (paused)" if one.paused else one.topic
    return (
        *(name, *map(_count, counts), str(one.consumers)),
        *(_seconds(one.oldest_seconds), _seconds(one.last_end_seconds)),
    )


def _count(count: int) -> str:
    """A count, or that it stopped."""
    return f"{MOST:,}+" if count >= MOST else f"{count:,}"


def _seconds(seconds: int | None) -> str:
    return "" if seconds is None else in_words(timedelta(seconds=seconds))
