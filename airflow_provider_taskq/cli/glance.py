"""Topics at a glance."""

from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from airflow_provider_taskq.cli.words import in_words
from airflow_provider_taskq.queue import TaskQueue
from airflow_provider_taskq.queue.browse import TopicGlance

MOST = 1_000  # tasks that a count goes to
PAGE = 500  # topics a call

COLUMNS = (
    *("~topic", "#due", "?#later", "?#waiting", "#held", "#failed", "?#suspended", "?#expired", "?#owners"),
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


def glance_row(one: TopicGlance) -> tuple[object, ...]:
    """In the order of COLUMNS; nought is left blank."""
    counts = (one.due, one.later, one.waiting, one.held, one.failed, one.suspended, one.expired)
    name = f"{one.topic} (paused)" if one.paused else one.topic
    return (
        *(name, *map(_count, counts), one.consumers or ""),
        *(_seconds(one.oldest_seconds), _seconds(one.last_end_seconds)),
    )


def _count(count: int) -> str:
    """A count, or that it stopped."""
    return "" if not count else f"{MOST:,}+" if count >= MOST else f"{count:,}"


def _seconds(seconds: int | None) -> str:
    return "" if seconds is None else in_words(timedelta(seconds=seconds))
