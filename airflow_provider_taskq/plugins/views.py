"""What can be looked at: topics, tasks, owners, locks, readers, ticks, health and the trail of actions."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query

from airflow_provider_taskq.plugins import serializers
from airflow_provider_taskq.plugins.auth import Viewer, listed, listed_conn_ids, may_act, viewer
from airflow_provider_taskq.plugins.dags import uses_of
from airflow_provider_taskq.plugins.schemas import Filter, Name, Place, Size, StateName, Text
from airflow_provider_taskq.plugins.serializers import Shape
from airflow_provider_taskq.plugins.session import looking
from airflow_provider_taskq.plugins.task_instances import Wait, claim, drain_sentence, wait_sentence
from airflow_provider_taskq.plugins.topic_list import SortKey, topic_list
from airflow_provider_taskq.queue import Condition, TaskQueue, Throughput
from airflow_provider_taskq.queue.owner_names import TaskInstanceName

BARS, MINUTES, HOURS = (timedelta(minutes=3), 20), (timedelta(minutes=1), 60), (timedelta(hours=1), 24)
LISTED = 1000  # topics that are counted, sorted and added up
CAP, TOPIC_CAP = 1000, 10_000
IDENTIFIERS = 50
READ_TOPICS = 20  # whose logs are asked for who holds them back
TICK_TOPICS, TICK_STEPS = 100, 20

ConnId = Annotated[str, Depends(listed)]
router = APIRouter(prefix="/api", dependencies=[Depends(viewer)])


@router.get("/connections")
def connections(user: Viewer) -> Shape:
    """The connections that may be looked at, and whether this user may act on them. Asks no queue's database."""
    found = [{"conn_id": conn_id, "may_act": may_act(user, conn_id)} for conn_id in listed_conn_ids()]
    return {"connections": found, "user": user.get_name(), "as_of": serializers.moment(datetime.now(UTC))}


@router.get("/{conn_id}/topics")
def topics(
    conn_id: ConnId,
    search: Text = None,
    sort: SortKey = "topic",
    order: Annotated[str, Query(pattern="^(asc|desc)$")] = "asc",
    trouble: bool = False,
    after: Annotated[int, Query(ge=0, le=LISTED)] = 0,
    size: Size = 25,
) -> Shape:
    """Topics with capped counts in an order, from a place in it on; looks at the first 1,000 names that match."""
    with looking(conn_id) as queue:
        found = queue.browse_topics(search or None, size=LISTED + 1, cap=CAP)
        shown = topic_list(
            found[:LISTED], sort=sort, descending=order == "desc", trouble=trouble, offset=after, size=size, cap=CAP
        )
        return {**shown, "capped": len(found) > LISTED, **_stamp(queue)}


@router.get("/{conn_id}/throughput")
def throughput(conn_id: ConnId, topic: Annotated[list[str], Query(max_length=200)]) -> Shape:
    """What ended in the last hour, of those of these topics where anything did: for the bars beside their names."""
    with looking(conn_id) as queue:
        ended = queue.throughput(*BARS)
        wanted = {each.topic for each in ended}.intersection(topic)
        bars = {
            name: serializers.bars((each for each in ended if each.topic == name), BARS[1]) for name in sorted(wanted)
        }
        return {"topics": bars, "span_seconds": BARS[0].total_seconds(), **_stamp(queue)}


@router.get("/{conn_id}/topic")
def one_topic(conn_id: ConnId, topic: Name) -> Shape:
    """A topic with its policy, charts, and who holds its tasks."""
    with looking(conn_id) as queue:
        glance = queue.browse_topic(topic, TOPIC_CAP)
        if glance is None:
            raise HTTPException(404, f"There is no topic {topic}.")
        charts = _charts(topic, queue.throughput(*MINUTES, topic), queue.throughput(*HOURS, topic))
        owners = [serializers.holder(each) for each in queue.browse_holders(topic)]
        shown = {**serializers.topic(glance, TOPIC_CAP), "policy": serializers.policy(queue.policy(topic)), **charts}
        return {"topic": {**shown, "owners": owners}, **_stamp(queue)}


@router.get("/{conn_id}/dags")
def dags(conn_id: ConnId, topic: Name, user: Viewer) -> Shape:
    """The DAGs that work on a topic or are started by it. Asks no queue's database."""
    found = uses_of(topic, conn_id, user)
    return {
        "uses": [serializers.use(each) for each in found.found],
        "templated": [serializers.use(each) for each in found.templated],
        "partial": found.partial,
        "as_of": serializers.moment(datetime.now(UTC)),
    }


def _filter(
    state: StateName | None = None,
    status: Text = None,
    identifier: Text = None,
    reference: Text = None,
    since: Text = None,
    until: Text = None,
    error: Text = None,
    error_group: Text = None,
) -> Filter:
    """The filter in a URL; a form's empty fields are none."""
    given = {"state": state, "status": status, "identifier": identifier, "reference": reference}
    given |= {"error": error, "error_group": error_group}
    return Filter.model_validate({**given, "since": since or None, "until": until or None})


@router.get("/{conn_id}/tasks")
def tasks(
    conn_id: ConnId,
    topic: Name,
    given: Annotated[Filter, Depends(_filter)],
    after: Place = None,
    before: Place = None,
    order: Annotated[str, Query(pattern="^(newest|oldest)$")] = "newest",
    size: Size = 50,
) -> Shape:
    """A page of the tasks that a filter finds."""
    if after is not None and before is not None:
        raise HTTPException(400, "A page goes after one sequence or before one, not both.")
    newest, back = order == "newest", before is not None
    with looking(conn_id) as queue:
        found = queue.find_tasks(
            topic, given.for_queue(), after=before if back else after, newest=newest != back, size=size + 1
        )
        shown = found.sequences[:size]
        beyond = shown[-1] if len(found.sequences) > size else found.looked_to
        lines = queue.browse_tasks(topic, shown[::-1] if back else shown)
        ways = _ways([line.sequence for line in lines], after, before, newest, beyond)
        return {
            "tasks": [serializers.task(line) for line in lines],
            **ways,
            "looked_to": found.looked_to,
            **_stamp(queue),
        }


def _ways(shown: Sequence[int], after: int | None, before: int | None, newest: bool, beyond: int | None) -> Shape:
    """Where the pages before and after this one begin; an empty one leads back to include where it came from."""
    step = 1 if newest else -1
    if before is not None:
        return {"previous": beyond, "next": shown[-1] if shown else before + step}
    came_from = None if after is None else after - step
    return {"previous": shown[0] if shown and after is not None else came_from, "next": beyond}


@router.get("/{conn_id}/search")
def search(conn_id: ConnId, text: Name, size: Size = 50) -> Shape:
    """The newest tasks of all topics whose sequence, identifier or reference is a text as a whole."""
    with looking(conn_id) as queue:
        found = queue.search_tasks(text.strip(), size + 1)
        return {"tasks": [serializers.task(line) for line in found[:size]], "more": len(found) > size, **_stamp(queue)}


@router.get("/{conn_id}/task")
def one_task(conn_id: ConnId, topic: Name, sequence: Annotated[int, Query(ge=0, le=2**63 - 1)]) -> Shape:
    """A task with why it is not running, its timeline, and what it depends on."""
    with looking(conn_id) as queue:
        lines = queue.browse_tasks(topic, [sequence], error_length=10_000)
        if not lines:
            raise HTTPException(404, f"Topic {topic} has no task {sequence}: it was never there, or was purged.")
        return {
            "task": serializers.task(lines[0]),
            "why": queue.explain(topic, sequence),
            "timeline": [serializers.happening(each) for each in queue.timeline(topic, sequence)],
            "depends_on": [_plain(each) for each in queue.dependencies(topic, sequence)],
            **_stamp(queue),
        }


@router.get("/{conn_id}/owners")
def owners(conn_id: ConnId, search: Text = None, after: Place = None, size: Size = 50) -> Shape:
    """Owners whose lease is not gone, the newest registration first."""
    with looking(conn_id) as queue:
        found, looked_to = queue.browse_owners(search or None, after=after, size=size + 1)
        following = found[size - 1].fence if len(found) > size else looked_to
        return {"owners": [serializers.owner(each) for each in found[:size]], "next": following, **_stamp(queue)}


@router.get("/{conn_id}/owner")
def one_owner(conn_id: ConnId, owner: Name, after: Place = None, size: Size = 50) -> Shape:
    """An owner and what it holds."""
    with looking(conn_id) as queue:
        line = queue.browse_owner(owner)
        held = queue.browse_held(owner, after, size + 1)
        following = held[size - 1].sequence if len(held) > size else None
        shown = {
            "owner": serializers.owner(line) if line else None,
            "tasks": [serializers.task(each) for each in held[:size]],
        }
        return {**shown, "next": following, **_stamp(queue)}


def _instance(
    dag_id: Name, run_id: Name, task_id: Name, map_index: Annotated[int, Query(ge=-1, le=10**9)] = -1
) -> TaskInstanceName:
    """The task instance that a URL names."""
    return TaskInstanceName(dag_id, run_id, task_id, map_index)


def _wait(
    waits_for: Annotated[str | None, Query(pattern="^(ready|states|groups)$")] = None,
    number: Annotated[int, Query(ge=1, le=10**9)] = 1,
    condition: Condition = Condition.NONE,
    wanted: Annotated[list[StateName] | None, Query()] = None,
) -> Wait | None:
    """What the gate that a URL tells of waits for."""
    if waits_for is None:
        return None
    return Wait(waits_for, number, condition, wanted or ["SUCCEEDED"])  # type: ignore[arg-type]  # one of the pattern


@router.get("/{conn_id}/instance")
def instance(
    conn_id: ConnId,
    named: Annotated[TaskInstanceName, Depends(_instance)],
    claimed_as: Text = None,
    topic: Text = None,
    first: Place = None,
    last: Place = None,
    identifier: Annotated[list[str] | None, Query()] = None,
    claimed: Annotated[int | None, Query(ge=0, le=10**9)] = None,
    since: datetime | None = None,
    wait: Annotated[Wait | None, Depends(_wait)] = None,
) -> Shape:
    """What a task instance of Airflow holds, itself and in its workers; what it pushed and waits for, as Airflow tells.

    `claimed_as`: the name under which a gate claimed, where that is another one. `claimed`: how many tasks it claimed,
    and `since` when it ran.
    """
    owner = claimed_as or str(named)
    with looking(conn_id) as queue:
        line = queue.browse_owner(owner)
        shown: Shape = {"pushed": [], "waits_for": [], "topic": None}
        glance = queue.browse_topic(topic, CAP) if topic else None
        if topic and glance:
            shown = {
                **_of_instance(queue, topic, first, last, identifier or []),
                "topic": serializers.topic(glance, CAP),
            }
        names = (identifier or [])[:IDENTIFIERS]
        shown["waits"] = wait_sentence(queue, topic, wait, names) if topic and glance and wait else None
        shown["claim"] = (
            claim(queue, topic, owner, claimed, since) if topic and glance and claimed is not None else None
        )
        shown["drain"] = drain_sentence(queue, owner)
        holds = [serializers.task(each) for each in queue.browse_held(owner, workers=True)]
        return {"owner": serializers.owner(line) if line else None, "holds": holds, **shown, **_stamp(queue)}


def _of_instance(
    queue: TaskQueue, topic: str, first: int | None, last: int | None, identifiers: Sequence[str]
) -> Shape:
    """The tasks of one push, and the newest tasks of identifiers."""
    pushed = [] if first is None or last is None else queue.find_pushed(topic, first, last)
    newest = queue.newest_sequences(topic, identifiers[:IDENTIFIERS])
    wanted = [sequence for sequence in newest.values() if sequence is not None]
    lines = {line.sequence: serializers.task(line) for line in queue.browse_tasks(topic, [*pushed, *wanted])}
    return {
        "pushed": [lines[sequence] for sequence in pushed if sequence in lines],
        "waits_for": [{"identifier": name, "task": lines.get(found or -1)} for name, found in newest.items()],
    }


@router.get("/{conn_id}/locks")
def locks(conn_id: ConnId, after: Text = None, size: Size = 100) -> Shape:
    """Locks by name."""
    with looking(conn_id) as queue:
        found = queue.browse_locks(after, size + 1)
        following = found[size - 1].name if len(found) > size else None
        return {"locks": [_plain(each) for each in found[:size]], "next": following, **_stamp(queue)}


@router.get("/{conn_id}/readers")
def readers(conn_id: ConnId) -> Shape:
    """How far readers of logs got, and which open transactions hold these logs back."""
    with looking(conn_id) as queue:
        found = queue.browse_groups(100, CAP)
        names = list(dict.fromkeys(each.topic for each in found))
        shown = [
            {
                "group": each.group,
                "topic": each.topic,
                "partition": each.partition,
                "cursor": each.place,
                "advanced": serializers.moment(each.advanced),
                "behind": serializers.count(each.behind, CAP),
            }
            for each in found
        ]
        holders = [{"topic": name, **_plain(each)} for name in names[:READ_TOPICS] for each in queue.log_blockers(name)]
        return {"readers": shown, "holders": holders, "capped": len(found) == 100, **_stamp(queue)}


@router.get("/{conn_id}/ticks")
def ticks(conn_id: ConnId, topic: Text = None) -> Shape:
    """Ticks that wait, by topic, prefix and hash: of one topic, or a short look at each."""
    with looking(conn_id) as queue:
        names = [topic] if topic else queue.topics()
        shown, capped = [], len(names) > TICK_TOPICS
        for name in names[:TICK_TOPICS]:
            found, more = queue.browse_ticks(name) if topic else queue.browse_ticks(name, TICK_STEPS)
            shown += [{"topic": name, **_plain(each)} for each in found]
            capped = capped or more
        return {"ticks": shown, "capped": capped, **_stamp(queue)}


@router.get("/{conn_id}/health")
def health(conn_id: ConnId) -> Shape:
    """What slows or threatens the queue, the worst first."""
    with looking(conn_id) as queue:
        found = [{**_plain(each), "severity": each.severity.name.lower()} for each in queue.health()]
        return {"findings": found, **_stamp(queue)}


@router.get("/{conn_id}/errors")
def errors(conn_id: ConnId, topic: Name, size: Size = 20) -> Shape:
    """The failures of a topic in groups by error, the largest first."""
    with looking(conn_id) as queue:
        return {"errors": [_plain(each) for each in queue.error_groups(topic, size)], **_stamp(queue)}


@router.get("/{conn_id}/audit")
def audit(conn_id: ConnId, topic: Text = None, after: Place = None, size: Size = 50) -> Shape:
    """Who did what, the newest first."""
    with looking(conn_id) as queue:
        found = queue.audit_trail(topic or None, after=after, size=size + 1)
        lines = []
        for each in found[:size]:
            line = _plain(each)
            lines.append({"id": line.pop("audit_id"), **line})
        return {"audit": lines, "next": lines[-1]["id"] if len(found) > size else None, **_stamp(queue)}


def _stamp(queue: TaskQueue) -> Shape:
    """When this was so, by the database's clock."""
    return {"as_of": serializers.moment(queue.now())}


def _charts(topic: str, minutes: Sequence[Throughput], hours: Sequence[Throughput]) -> Shape:
    """A topic's last hour and day; `sampled`: the least share of what has ended that was read for them."""
    hour, day = ([each for each in ended if each.topic == topic] for ended in (minutes, hours))
    sampled = min((each.sampled for each in (*hour, *day)), default=1.0)
    return {"hour": serializers.spans(hour, 60), "day": serializers.spans(day, 24), "sampled": sampled}


def _plain(line: Any) -> Shape:
    """A line as it is, its moments in ISO 8601."""
    fields = {name: getattr(line, name) for name in line.__dataclass_fields__}
    return {
        name: serializers.moment(value) if hasattr(value, "astimezone") else value for name, value in fields.items()
    }
