"""The committing transaction of a batch: those who take part, the decisions, and what follows them. All or nothing."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import cast

import psycopg

from airflow_provider_taskq.processing.handling import name_of
from airflow_provider_taskq.processing.work import FollowUp, Participation, Work
from airflow_provider_taskq.queue import Decision, Insertion, Junction, NewTask, Owner, Result, Task, TaskQueue

log = logging.getLogger(__name__)

# What fails by the chance of who else is at work: the whole transaction is worth another try.
TRANSIENT = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure, psycopg.errors.LockNotAvailable)


def settle(queue: TaskQueue, owner: Owner, work: Work, decisions: Mapping[Task, Decision]) -> Mapping[Task, Decision]:
    """Commits the decisions on a batch in one transaction, and returns them as they stand after all took part.

    In order: the participants, the decisions, pushes that follow continued tasks, junctions that do. After the commit,
    and only then, topics with new tasks are woken and `after_commit` is called. Needs a connection without an open
    transaction. Raises what `complete`, `push` and `junction` raise; nothing is changed then.
    """
    with queue.conn.transaction():
        stands = dict(decisions)
        for participant in work.participants:
            take_part(queue, participant, stands)
        queue.complete(owner, cast("Mapping[Task | int, Decision | Result]", stands))
        topics = follow(queue, work, stands)
    after_commit(queue, work, topics)
    return stands


def has_company(work: Work) -> bool:
    """Whether a batch commits more than its decisions."""
    return bool(work.participants or work.follow_ups or work.releases or work.afterwards)


def after_commit(queue: TaskQueue, work: Work, topics: Iterable[str] = ()) -> None:
    """Does what comes after a commit; what goes wrong here changes nothing, and is told to the log."""
    for topic in topics:
        _quietly(f"the waking of topic {topic!r}", lambda topic=topic: queue.wake(topic))  # type: ignore[misc]
    for call in work.afterwards:
        _quietly(name_of(call), call)


def take_part(queue: TaskQueue, part: Participation, stands: dict[Task, Decision]) -> None:
    """Lets one participant do and say its part; where it fails, what it did is undone and its tasks are FAILED."""
    seen = {task: decision for task, decision in stands.items() if part.task in (None, task)}
    if not seen:
        return
    try:
        with queue.conn.transaction():
            said = part.call(queue, dict(seen))
            _check(part, said, seen)
    except TRANSIENT:
        raise
    except Exception as error:
        if queue.conn.closed:
            raise
        said = dict.fromkeys(seen, Decision(Result.FAILURE, error=error))
    for task, decision in (said or {}).items():
        stands[task] = stands[task].merge(decision)


def _check(part: Participation, said: Mapping[Task, Decision] | None, seen: Mapping[Task, Decision]) -> None:
    """Refuses a participant that leaves some tasks open, or decides on those of others."""
    if said is None:
        return
    name = name_of(part.call)
    if missing := [task.sequence for task in seen if task not in said]:
        raise LookupError(f"{name} made no decision on sequence {', '.join(map(str, missing[:10]))}")
    if foreign := [task.sequence for task in said if task not in seen]:
        raise LookupError(
            f"{name} decided on sequence {', '.join(map(str, foreign[:10]))}, which it was not asked about"
        )


def follow(queue: TaskQueue, work: Work, stands: Mapping[Task, Decision]) -> list[str]:
    """Pushes and then releases what follows continued tasks; returns the topics that got something."""
    topics: dict[str, None] = {}
    for topic, insertion, tasks in _joined(each for each in work.follow_ups if _continued(each.task, stands)):
        queue.push(topic, tasks, insertion)
        topics[topic] = None
    groups: dict[tuple[str, Junction], dict[tuple[str, ...], None]] = {}
    for release in work.releases:
        if _continued(release.task, stands):
            groups.setdefault((release.topic, release.junction), {}).update(dict.fromkeys(release.groups))
    for (topic, junction), given in groups.items():
        if queue.junction(topic, given, junction):
            topics[topic] = None
    return list(topics)


def _continued(task: Task, stands: Mapping[Task, Decision]) -> bool:
    """Whether what follows a task is to come."""
    return task in stands and bool(stands[task].continued)


def _joined(pushes: Iterable[FollowUp]) -> list[tuple[str, Insertion, list[NewTask]]]:
    """Pushes in their order, neighbours of one topic and insertion as one."""
    joined: list[tuple[str, Insertion, list[NewTask]]] = []
    for each in pushes:
        if not joined or joined[-1][:2] != (each.topic, each.insertion):
            joined.append((each.topic, each.insertion, []))
        joined[-1][2].extend(each.tasks)
    return joined


def _quietly(what: str, call: Callable[[], None]) -> None:
    """Calls what comes too late to change anything."""
    try:
        call()
    except Exception:
        log.exception("After a commit, %s failed; what was committed stands", what)
