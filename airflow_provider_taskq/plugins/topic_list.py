"""The list of topics: sorted, narrowed to those in trouble, with totals over all of them."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from airflow_provider_taskq.plugins import serializers
from airflow_provider_taskq.plugins.serializers import Shape
from airflow_provider_taskq.queue.reports import TopicSummary

LONG_DUE = 300  # seconds: as long as the health check lets a due task wait
COUNTS = ("ready", "scheduled", "retrying", "blocked", "paused_tasks", "running", "failed", "suspended", "expired")
_Status = Literal[
    "ready", "scheduled", "retrying", "blocked", "paused_tasks", "running", "failed", "suspended", "expired"
]
SortKey = _Status | Literal["topic", "oldest", "consumers"]

_KEYS: dict[str, Callable[[TopicSummary], Any]] = {
    "topic": lambda glance: glance.topic,
    "oldest": lambda glance: -1 if glance.oldest_seconds is None else glance.oldest_seconds,
    "consumers": lambda glance: glance.consumers,
    **{name: lambda glance, name=name: getattr(glance, name) for name in COUNTS},  # type: ignore[misc]  # mypy reads no default
}


def in_trouble(glance: TopicSummary) -> bool:
    """Whether a topic is paused, has FAILED or EXPIRED tasks, or a task that has been due for more than 5 minutes."""
    late = glance.oldest_seconds is not None and glance.oldest_seconds >= LONG_DUE
    return glance.paused or glance.failed > 0 or glance.expired > 0 or late


def topic_list(
    found: Sequence[TopicSummary], *, sort: SortKey, descending: bool, trouble: bool, offset: int, size: int, cap: int
) -> Shape:
    """A page of topics in an order, and the totals of all topics that match, not of this page alone."""
    matching = [each for each in found if in_trouble(each)] if trouble else list(found)
    matching.sort(key=lambda each: each.topic)
    matching.sort(key=_KEYS[sort], reverse=descending)  # stable: equal ones stay in the order of their names
    end = offset + size
    return {
        "topics": [serializers.topic(each, cap) for each in matching[offset:end]],
        "totals": {"topics": len(matching), **_totals(matching, cap)},
        "next": end if end < len(matching) else None,
    }


def _totals(topics: Sequence[TopicSummary], cap: int) -> Shape:
    """The sums of all counts; capped if one of them stopped at its cap."""
    sums: Shape = {
        name: {
            "count": sum(getattr(each, name) for each in topics),
            "capped": any(getattr(each, name) >= cap for each in topics),
        }
        for name in COUNTS
        if name != "running"
    }
    running = {"count": sum(each.running for each in topics), "capped": any(each.running_capped for each in topics)}
    return {**sums, "running": running}
