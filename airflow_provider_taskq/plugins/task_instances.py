"""The panel of a task instance: what it waits for, holds, has claimed and has pushed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query

from airflow_provider_taskq.plugins import serializers
from airflow_provider_taskq.plugins.auth import ConnId, viewer
from airflow_provider_taskq.plugins.schemas import Name, Place, StateName, Text, require_zone
from airflow_provider_taskq.plugins.serializers import Document
from airflow_provider_taskq.plugins.session import read_only
from airflow_provider_taskq.queue import Condition, State, TaskFilter, TaskQueue
from airflow_provider_taskq.queue.inspect import BUDGET
from airflow_provider_taskq.queue.owner_names import TaskInstanceName
from airflow_provider_taskq.queue.topic_status import describe_group_wait, describe_ready_wait, describe_state_wait

COUNT_CAP = 1000
MAX_IDENTIFIERS = 50
MAX_CLAIMED_TASKS = 50
DRAIN_COUNTS = (
    *("handled", "claimed", "resumed", "decided"),
    *("succeeded", "filtered", "suspended", "failed", "undecided", "returned"),
)

router = APIRouter(prefix="/api", dependencies=[Depends(viewer)])


@dataclass(frozen=True, slots=True)
class SensorWait:
    """What a sensor waits for, from its rendered fields: ready tasks, states of tasks, or groups."""

    what: Literal["ready", "states", "groups"]
    number: int = 1
    condition: Condition = Condition.NONE
    states: Sequence[str] = ("SUCCEEDED",)


def _instance_name(
    dag_id: Name, run_id: Name, task_id: Name, map_index: Annotated[int, Query(ge=-1, le=10**9)] = -1
) -> TaskInstanceName:
    return TaskInstanceName(dag_id, run_id, task_id, map_index)


def _sensor_wait(
    waits_for: Annotated[str | None, Query(pattern="^(ready|states|groups)$")] = None,
    number: Annotated[int, Query(ge=1, le=10**9)] = 1,
    condition: Condition = Condition.NONE,
    wanted: Annotated[list[StateName] | None, Query()] = None,
) -> SensorWait | None:
    if waits_for is None:
        return None
    return SensorWait(waits_for, number, condition, wanted or ["SUCCEEDED"])  # type: ignore[arg-type]  # by the pattern


@router.get("/{conn_id}/instance")
def instance(
    conn_id: ConnId,
    named: Annotated[TaskInstanceName, Depends(_instance_name)],
    claimed_as: Text = None,
    topic: Text = None,
    first: Place = None,
    last: Place = None,
    identifier: Annotated[list[str] | None, Query()] = None,
    claimed: Annotated[int | None, Query(ge=0, le=10**9)] = None,
    since: datetime | None = None,
    wait: Annotated[SensorWait | None, Depends(_sensor_wait)] = None,
) -> Document:
    """Return the queue's view of a task instance.

    The view has what the task instance and its workers hold, what it has pushed, and what it waits for.

    `claimed_as`: the owner's name, if the sensor claimed under another name than that of the task instance. `claimed`:
    the number of tasks that the sensor claimed. `since`: the start of the task instance.
    """
    owner = claimed_as or str(named)
    names = (identifier or [])[:MAX_IDENTIFIERS]
    with read_only(conn_id) as queue:
        shown: Document = {"pushed": [], "waits_for": [], "topic": None, "waits": None, "claim": None}
        counts = queue.browse_topic(topic, COUNT_CAP) if topic else None
        if topic and counts:
            shown |= {**_tasks_of_instance(queue, topic, first, last, names)}
            shown["topic"] = serializers.topic(counts, COUNT_CAP)
            shown["waits"] = _wait_sentence(queue, topic, wait, names) if wait else None
            shown["claim"] = None if claimed is None else _claim(queue, topic, owner, claimed, since)
        shown["drain"] = _drain_sentence(queue, owner)
        line = queue.browse_owner(owner)
        shown["owner"] = serializers.owner(line) if line else None
        shown["holds"] = [serializers.task(each) for each in queue.browse_held(owner, workers=True)]
        return {**shown, **serializers.stamp(queue)}


def _tasks_of_instance(
    queue: TaskQueue, topic: str, first: int | None, last: int | None, identifiers: Sequence[str]
) -> Document:
    """Return the tasks of one push, and the newest tasks of identifiers."""
    pushed: list[int] = []
    if first is not None and last is not None:
        budget = max(1, min(last - first + 1, BUDGET))
        same = TaskFilter(pushed_with=first)
        pushed = queue.find_tasks(topic, same, after=first - 1, newest=False, budget=budget).sequences
    newest = queue.newest_sequences(topic, identifiers)
    found = queue.browse_tasks(topic, [*pushed, *newest.values()])
    tasks = {line.sequence: serializers.task(line) for line in found}
    return {
        "pushed": [tasks[sequence] for sequence in pushed if sequence in tasks],
        "waits_for": [{"identifier": name, "task": tasks.get(newest.get(name, -1))} for name in identifiers],
    }


def _wait_sentence(queue: TaskQueue, topic: str, wait: SensorWait, identifiers: Sequence[str]) -> str:
    """Describe what a sensor waits for now, in the sentence that the sensor writes into its task log."""
    status = queue.topic_status(topic, wait.condition)
    if wait.what == "ready":
        return describe_ready_wait(status, wait.number, wait.condition)
    if wait.what == "groups":
        return describe_group_wait(status, wait.number, None)
    found = {name: task.state.name for name, task in queue.latest(topic, identifiers).items()}
    return describe_state_wait(status, {name: found.get(name) for name in identifiers}, wait.states)


def _drain_sentence(queue: TaskQueue, name: str) -> str | None:
    """Describe the latest drain of a task instance. Return None if there was no drain."""
    drain = queue.drain_report(name)
    if drain is None:
        return None
    if drain.report is None:
        return f"Drains topic {drain.topic!r}; it has not reported its end."
    report = drain.report
    counts = [f"{report[count]:,} {count}" for count in DRAIN_COUNTS if isinstance(report.get(count), int)]
    return f"Drained topic {drain.topic!r}: {', '.join(counts)}."


def _claim(queue: TaskQueue, topic: str, owner: str, claimed: int, since: datetime | None) -> Document:
    """Return the tasks that a sensor claimed.

    The document has the present states of these tasks as counts and in a sentence, and the first of the tasks.
    """
    require_zone(since)
    found = queue.find_claimed(topic, owner, since)
    counts = Counter(each.state for each in found)
    ordered = sorted(counts, reverse=True)
    parts = [f"{counts[state]:,} {'running' if state is State.ACTIVE else state.name.lower()}" for state in ordered]
    rest = claimed - len(found)
    if rest > 0:
        parts.append(f"{rest:,} given back to the topic, to be tried again, or removed")
    elif rest < 0:
        parts.append("with tasks of a later claim of the same owner")
    tasks = queue.browse_tasks(topic, [each.sequence for each in found[:MAX_CLAIMED_TASKS]])
    return {
        "owner": owner,
        "claimed": claimed,
        "states": [{"state": state.name, "count": counts[state]} for state in ordered],
        "sentence": f"Claimed {claimed:,}: {', '.join(parts) or 'their states are not known'}.",
        "tasks": [serializers.task(line) for line in tasks],
    }
