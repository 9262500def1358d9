"""Answers of the API as JSON documents."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Literal, get_args
from urllib.parse import quote

from airflow_provider_taskq.plugins.dags import TopicUse
from airflow_provider_taskq.queue import Row, State, TaskQueue, TopicPolicy
from airflow_provider_taskq.queue.owner_names import TaskInstanceName
from airflow_provider_taskq.queue.policies import policy_fields

Document = dict[str, Any]
HOLDERS_CAP = 10_000
HELD_CAP = 1000
DURATIONS = ("waited", "ran")
OVERDUE_SECONDS = 300  # the health check reports a due task after the same time
_Count = Literal[
    "ready", "scheduled", "retrying", "blocked", "paused_tasks", "running", "failed", "suspended", "expired"
]
COUNTS: tuple[_Count, ...] = get_args(_Count)
SortKey = _Count | Literal["topic", "oldest", "consumers"]


def moment(value: datetime | None) -> str | None:
    """Format a moment in ISO 8601, in UTC. Return None for None."""
    return None if value is None else value.astimezone(UTC).isoformat()


def stamp(queue: TaskQueue) -> Document:
    """Return the field `as_of` of a response of the page: the database's current time."""
    return {"as_of": moment(queue.now())}


def seconds(value: timedelta | None) -> float | None:
    """Return a duration in seconds, or None for None."""
    return None if value is None else value.total_seconds()


def count(number: int, cap: int) -> Document:
    """Return a count as a document, with whether counting stopped at the cap."""
    return {"count": number, "capped": number >= cap}


def row(found: Row) -> Document:
    """Return a row of the queue as a document.

    Moments are in ISO 8601, enums are names, and a duration `ran` is `ran_seconds`.
    """
    document: Document = {}
    for name, value in found._asdict().items():
        if name in DURATIONS:
            document[f"{name}_seconds"] = seconds(value)
        elif isinstance(value, datetime):
            document[name] = moment(value)
        else:
            document[name] = value.name if isinstance(value, Enum) else value
    return document


def topic(summary: Row, cap: int) -> Document:
    """Return a topic with its counts as a document."""
    counts: Document = {name: count(getattr(summary, name), cap) for name in COUNTS}
    return {
        "topic": summary.topic,
        "paused": summary.paused,
        **counts,
        "running": {"count": summary.running, "capped": summary.running_capped},  # has a cap of its own
        "consumers": summary.consumers,
        "oldest_seconds": summary.oldest_seconds,
        "last_end_seconds": summary.last_end_seconds,
    }


def policy(given: TopicPolicy) -> Document:
    """Return a topic's policy as a document, with durations in seconds."""
    values = policy_fields(given).items()
    return {name: seconds(value) if isinstance(value, timedelta) else value for name, value in values}


def spans(ended: Iterable[Row], number: int) -> list[Document]:
    """Return the number of tasks that ended in each span, the oldest span first.

    `other` counts SUSPENDED and FILTERED tasks.
    """
    made = [{"succeeded": 0, "failed": 0, "other": 0} for _ in range(number)]
    for each in ended:
        if 0 <= each.span < number:
            kind = {State.SUCCEEDED: "succeeded", State.FAILED: "failed"}.get(each.state, "other")
            made[number - 1 - each.span][kind] += each.count
    return made


def bars(ended: Iterable[Row], number: int) -> list[list[int]]:
    """Return the spans in which tasks ended, as [span, succeeded, failed, other]."""
    return [
        [place, each["succeeded"], each["failed"], each["other"]]
        for place, each in enumerate(spans(ended, number))
        if any(each.values())
    ]


def task(line: Row) -> Document:
    """Return a task as a document, without payload and output."""
    return {**row(line), "links": links(line.owner)}


def history_event(event: Row) -> Document:
    """Return an event of a task's history as a document. Of a reassigned task, `other` names the state."""
    other = State(event.other).name if event.what == "reassigned" and event.other is not None else event.other
    return {**row(event), "other": other, "links": links(event.holder)}


def owner(line: Row) -> Document:
    """Return an owner as a document, with the number of tasks that the owner holds."""
    more = {"gone": line.fence is None, "seen": moment(line.seen), "lease_seconds": seconds(line.lease)}
    return {**holder(line, HELD_CAP), **more, "topics": list(line.topics)}


def holder(line: Row, cap: int = HOLDERS_CAP) -> Document:
    """Return an owner as a document, with the number of tasks of one topic that the owner holds."""
    return {
        "owner": line.name,
        "held": count(line.held, cap),
        "lease_until": moment(line.lease_until),
        "lapsed": line.lapsed,
        "links": links(line.name),
    }


def use(each: TopicUse) -> Document:
    """Return the use of a topic by a task of a DAG, or by a DAG's schedule, as a document."""
    dag = f"dags/{quote(each.dag_id, safe='')}"
    task = None if each.task_id is None else f"{dag}/tasks/{quote(each.task_id, safe='')}"
    return {"dag_id": each.dag_id, "task_id": each.task_id, "role": each.role, "links": {"dag": dag, "task": task}}


def links(name: str | None) -> Mapping[str, str] | None:
    """Return links to the task instance of an owner, relative to Airflow's <base>; None for other owners."""
    found = TaskInstanceName.parse(name or "")
    if found is None:
        return None
    dag_run = f"dags/{quote(found.dag_id, safe='')}/runs/{quote(found.run_id, safe='')}"
    mapped = f"/mapped/{found.map_index}" if found.map_index >= 0 else ""
    return {"dag_run": dag_run, "task_instance": f"{dag_run}/tasks/{quote(found.task_id, safe='')}{mapped}"}


_KEYS: dict[str, Callable[[Row], Any]] = {
    "topic": lambda summary: summary.topic,
    "oldest": lambda summary: -1 if summary.oldest_seconds is None else summary.oldest_seconds,
    "consumers": lambda summary: summary.consumers,
    **{name: lambda summary, name=name: getattr(summary, name) for name in COUNTS},  # type: ignore[misc]  # mypy reads no default
}


def in_trouble(summary: Row) -> bool:
    """Return whether a topic is in trouble.

    The topic is paused, has FAILED or EXPIRED tasks, or has a task that has been due for more than 5 minutes.
    """
    late = summary.oldest_seconds is not None and summary.oldest_seconds >= OVERDUE_SECONDS
    return summary.paused or summary.failed > 0 or summary.expired > 0 or late


def topic_list(
    found: Sequence[Row], *, sort: SortKey, descending: bool, trouble: bool, offset: int, size: int, cap: int
) -> Document:
    """Return a page of sorted topics, and the totals of all topics that match."""
    matching = [each for each in found if in_trouble(each)] if trouble else list(found)
    matching.sort(key=lambda each: each.topic)
    matching.sort(key=_KEYS[sort], reverse=descending)  # stable: equal topics stay in the order of their names
    end = offset + size
    return {
        "topics": [topic(each, cap) for each in matching[offset:end]],
        "totals": {"topics": len(matching), **_sum_counts(matching, cap)},
        "next": end if end < len(matching) else None,
    }


def _sum_counts(topics: Sequence[Row], cap: int) -> Document:
    """Return the sums of all counts. A sum is capped if one of its counts is capped."""
    sums: Document = {
        name: {
            "count": sum(getattr(each, name) for each in topics),
            "capped": any(getattr(each, name) >= cap for each in topics),
        }
        for name in COUNTS
        if name != "running"
    }
    running = {"count": sum(each.running for each in topics), "capped": any(each.running_capped for each in topics)}
    return {**sums, "running": running}
