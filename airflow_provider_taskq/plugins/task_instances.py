"""What a task instance of Airflow has to do with the queue: what it waits for, holds, claimed and pushed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from fastapi import HTTPException

from airflow_provider_taskq.plugins import serializers
from airflow_provider_taskq.plugins.serializers import Shape
from airflow_provider_taskq.queue import Condition, State, TaskQueue
from airflow_provider_taskq.queue.topic_status import describe_group_wait, describe_ready_wait, describe_state_wait

SHOWN = 50
DRAINED = ("handled", "claimed", "resumed", "decided", "succeeded", "filtered", "suspended", "failed", "undecided")
WORDS = {State.ACTIVE: "running"}  # all others by their names


@dataclass(frozen=True, slots=True)
class Wait:
    """What a gate waits for, as its rendered fields tell: tasks that are ready, states of tasks, or groups."""

    what: Literal["ready", "states", "groups"]
    number: int = 1
    condition: Condition = Condition.NONE
    states: Sequence[str] = ("SUCCEEDED",)


def wait_sentence(queue: TaskQueue, topic: str, wait: Wait, identifiers: Sequence[str]) -> str:
    """What a gate waits for now: the sentence that it writes into its own log."""
    status = queue.topic_status(topic, wait.condition)
    if wait.what == "ready":
        return describe_ready_wait(status, wait.number, wait.condition)
    if wait.what == "groups":
        return describe_group_wait(status, wait.number, None)
    found = {name: task.state.name for name, task in queue.latest(topic, identifiers).items()}
    return describe_state_wait(status, {name: found.get(name) for name in identifiers}, wait.states)


def drain_sentence(queue: TaskQueue, name: str) -> str | None:
    """What the latest drain of a task instance reported, by Spark or by a function; None if it has drained nothing."""
    drain = queue.drain_report(name)
    if drain is None:
        return None
    if drain.report is None:
        return f"Drains topic {drain.topic!r}; it has not reported its end."
    report = drain.report
    counts = [f"{report[count]:,} {count}" for count in DRAINED if isinstance(report.get(count), int)]
    return f"Drained topic {drain.topic!r}: {', '.join(counts)}."


def claim(queue: TaskQueue, topic: str, owner: str, claimed: int, since: datetime | None) -> Shape:
    """What became of the tasks that a gate claimed, in counts and in one sentence, and the first of them."""
    if since is not None and since.utcoffset() is None:
        raise HTTPException(400, f"The time {since.isoformat()} has no zone: write Z or +00:00 after it.")
    found = queue.find_claimed(topic, owner, since)
    counts = Counter(state for _, state in found)
    states = [{"state": state.name, "count": counts[state]} for state in sorted(counts, reverse=True)]
    parts = [f"{counts[state]:,} {WORDS.get(state, state.name.lower())}" for state in sorted(counts, reverse=True)]
    if rest := claimed - len(found):
        parts.append(
            f"{rest:,} given back to the topic, to be tried again, or removed"
            if rest > 0
            else "some by a later claim of that name"
        )
    tasks = queue.browse_tasks(topic, [sequence for sequence, _ in found[:SHOWN]])
    return {
        "owner": owner,
        "claimed": claimed,
        "states": states,
        "sentence": f"Claimed {claimed:,}: {', '.join(parts) or 'nothing is known of them any more'}.",
        "tasks": [serializers.task(line) for line in tasks],
    }
