"""Views of the page: topics, tasks, owners, locks, consumer groups, ticks, health and the audit log."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Query

from airflow_provider_taskq.plugins import serializers
from airflow_provider_taskq.plugins.auth import ConnId, Viewer, listed_conn_ids, may_act, viewer
from airflow_provider_taskq.plugins.dags import uses_of
from airflow_provider_taskq.plugins.schemas import Filter, Name, Place, Size, StateName, Text
from airflow_provider_taskq.plugins.serializers import Document, SortKey, topic_list
from airflow_provider_taskq.plugins.session import read_only
from airflow_provider_taskq.queue import Row

BARS, MINUTES, HOURS = (timedelta(minutes=3), 20), (timedelta(minutes=1), 60), (timedelta(hours=1), 24)
MAX_TOPICS = 1000  # counted, sorted and added up for one answer
CAP, TOPIC_CAP = 1000, 10_000
LOG_TOPICS = 20  # that are searched for transactions that hold back their logs
TICK_TOPICS, TICK_STEPS = 100, 20

router = APIRouter(prefix="/api", dependencies=[Depends(viewer)])


@router.get("/connections")
def connections(user: Viewer) -> Document:
    """Return the connections that the page shows, and whether the user may act on each.

    This view queries no database of a queue.
    """
    found = [{"conn_id": conn_id, "may_act": may_act(user, conn_id)} for conn_id in listed_conn_ids()]
    return {"connections": found, "user": user.get_name(), "as_of": serializers.moment(datetime.now(UTC))}


@router.get("/{conn_id}/topics")
def topics(
    conn_id: ConnId,
    search: Text = None,
    sort: SortKey = "topic",
    order: Annotated[str, Query(pattern="^(asc|desc)$")] = "asc",
    trouble: bool = False,
    after: Annotated[int, Query(ge=0, le=MAX_TOPICS)] = 0,
    size: Size = 25,
) -> Document:
    """Return sorted topics with capped counts, of the first 1,000 names that match."""
    with read_only(conn_id) as queue:
        found = queue.browse_topics(search or None, size=MAX_TOPICS + 1, cap=CAP)
        shown = topic_list(
            found[:MAX_TOPICS], sort=sort, descending=order == "desc", trouble=trouble, offset=after, size=size, cap=CAP
        )
        return {**shown, "capped": len(found) > MAX_TOPICS, **serializers.stamp(queue)}


@router.get("/{conn_id}/throughput")
def throughput(conn_id: ConnId, topic: Annotated[list[str], Query(max_length=200)]) -> Document:
    """Return the tasks of these topics that ended in the last hour, for the charts in the list of topics."""
    with read_only(conn_id) as queue:
        ended = queue.throughput(*BARS)
        wanted = {each.topic for each in ended}.intersection(topic)
        bars = {
            name: serializers.bars((each for each in ended if each.topic == name), BARS[1]) for name in sorted(wanted)
        }
        return {"topics": bars, "span_seconds": BARS[0].total_seconds(), **serializers.stamp(queue)}


@router.get("/{conn_id}/topic")
def one_topic(conn_id: ConnId, topic: Name) -> Document:
    """Return a topic with its policy, its charts and its owners."""
    with read_only(conn_id) as queue:
        summary = queue.browse_topic(topic, TOPIC_CAP)
        if summary is None:
            raise HTTPException(404, f"Topic {topic} does not exist.")
        charts = _charts(topic, queue.throughput(*MINUTES, topic), queue.throughput(*HOURS, topic))
        owners = [serializers.holder(each) for each in queue.browse_holders(topic)]
        shown = {**serializers.topic(summary, TOPIC_CAP), "policy": serializers.policy(queue.policy(topic)), **charts}
        return {"topic": {**shown, "owners": owners}, **serializers.stamp(queue)}


@router.get("/{conn_id}/dags")
def dags(conn_id: ConnId, topic: Name, user: Viewer) -> Document:
    """Return the DAGs that use a topic or are started by its events.

    This view queries no database of a queue.
    """
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
    """Return the filter that a URL contains. Empty fields of a form count as absent."""
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
) -> Document:
    """Return a page of the tasks that match a filter."""
    if after is not None and before is not None:
        raise HTTPException(400, "Give either after or before, not both.")
    newest, back = order == "newest", before is not None
    with read_only(conn_id) as queue:
        found, looked_to = queue.find_tasks(
            topic, given.for_queue(), after=before if back else after, newest=newest != back, size=size + 1
        )
        shown = found[:size]
        beyond = shown[-1] if len(found) > size else looked_to
        lines = queue.browse_tasks(topic, shown[::-1] if back else shown)
        places = _page_places([line.sequence for line in lines], after, before, newest, beyond)
        return {
            "tasks": [serializers.task(line) for line in lines],
            **places,
            "looked_to": looked_to,
            **serializers.stamp(queue),
        }


def _page_places(
    shown: Sequence[int], after: int | None, before: int | None, newest: bool, beyond: int | None
) -> Document:
    """Return the places of the previous and the next page.

    An empty page leads back to the page before.
    """
    step = 1 if newest else -1
    if before is not None:
        return {"previous": beyond, "next": shown[-1] if shown else before + step}
    came_from = None if after is None else after - step
    return {"previous": shown[0] if shown and after is not None else came_from, "next": beyond}


@router.get("/{conn_id}/search")
def search(conn_id: ConnId, text: Name, size: Size = 50) -> Document:
    """Return the newest tasks of all topics whose sequence, identifier or reference equals a text."""
    with read_only(conn_id) as queue:
        found = queue.search_tasks(text.strip(), size + 1)
        return {
            "tasks": [serializers.task(line) for line in found[:size]],
            "more": len(found) > size,
            **serializers.stamp(queue),
        }


@router.get("/{conn_id}/task")
def one_task(conn_id: ConnId, topic: Name, sequence: Annotated[int, Query(ge=0, le=2**63 - 1)]) -> Document:
    """Return a task, why it is not running, its timeline, and its dependencies."""
    with read_only(conn_id) as queue:
        lines = queue.browse_tasks(topic, [sequence], error_length=10_000)
        if not lines:
            raise HTTPException(404, f"Topic {topic} has no task {sequence}. It may have been purged.")
        why = queue.explain(topic, sequence)
        return {
            "task": serializers.task(lines[0]),
            "why": why.reason if why else None,
            "waits_normally": why.waits_normally if why else None,
            "timeline": [serializers.history_event(each) for each in queue.timeline(topic, sequence)],
            "depends_on": [serializers.row(each) for each in queue.dependencies(topic, sequence)],
            **serializers.stamp(queue),
        }


@router.get("/{conn_id}/owners")
def owners(conn_id: ConnId, search: Text = None, after: Place = None, size: Size = 50) -> Document:
    """Return owners with a lease, the newest registration first."""
    with read_only(conn_id) as queue:
        found = queue.browse_owners(search or None, after=after, size=size + 1)
        following = found[size - 1].fence if len(found) > size else None
        return {
            "owners": [serializers.owner(each) for each in found[:size]],
            "next": following,
            **serializers.stamp(queue),
        }


@router.get("/{conn_id}/owner")
def one_owner(conn_id: ConnId, owner: Name, after: Place = None, size: Size = 50) -> Document:
    """Return an owner and the tasks that the owner holds."""
    with read_only(conn_id) as queue:
        line = queue.browse_owner(owner)
        held = queue.browse_held(owner, after, size + 1)
        following = held[size - 1].sequence if len(held) > size else None
        shown = {
            "owner": serializers.owner(line) if line else None,
            "tasks": [serializers.task(each) for each in held[:size]],
        }
        return {**shown, "next": following, **serializers.stamp(queue)}


@router.get("/{conn_id}/locks")
def locks(conn_id: ConnId, after: Text = None, size: Size = 100) -> Document:
    """Return locks by name."""
    with read_only(conn_id) as queue:
        found = queue.browse_locks(after, size + 1)
        following = found[size - 1].name if len(found) > size else None
        return {
            "locks": [serializers.row(each) for each in found[:size]],
            "next": following,
            **serializers.stamp(queue),
        }


@router.get("/{conn_id}/consumer_groups")
def consumer_groups(conn_id: ConnId) -> Document:
    """Return the progress of consumer groups, and the open transactions that hold back the logs."""
    with read_only(conn_id) as queue:
        found = queue.partition_states(size=100, cap=CAP)
        names = list(dict.fromkeys(each.topic for each in found))
        shown = [
            {
                "group": each.group,
                "topic": each.topic,
                "partition": each.partition,
                "cursor": each.cursor.place,
                "advanced": serializers.moment(each.advanced),
                "behind": serializers.count(each.behind, CAP),
            }
            for each in found
        ]
        holders = [
            {"topic": name, **serializers.row(each)} for name in names[:LOG_TOPICS] for each in queue.log_blockers(name)
        ]
        return {"consumer_groups": shown, "holders": holders, "capped": len(found) == 100, **serializers.stamp(queue)}


@router.get("/{conn_id}/ticks")
def ticks(conn_id: ConnId, topic: Text = None) -> Document:
    """Return waiting ticks by topic, prefix and hash: all of one topic, or the first of each topic."""
    with read_only(conn_id) as queue:
        names = [topic] if topic else queue.topics()
        shown, capped = [], len(names) > TICK_TOPICS
        for name in names[:TICK_TOPICS]:
            found, more = queue.browse_ticks(name) if topic else queue.browse_ticks(name, TICK_STEPS)
            shown += [{"topic": name, **serializers.row(each)} for each in found]
            capped = capped or more
        return {"ticks": shown, "capped": capped, **serializers.stamp(queue)}


@router.get("/{conn_id}/health")
def health(conn_id: ConnId) -> Document:
    """Return health findings, the worst first."""
    with read_only(conn_id) as queue:
        found = [{**serializers.row(each), "severity": each.severity.name.lower()} for each in queue.health()]
        return {"findings": found, **serializers.stamp(queue)}


@router.get("/{conn_id}/errors")
def errors(conn_id: ConnId, topic: Name, size: Size = 20) -> Document:
    """Return the failures of a topic, grouped by error, the largest group first."""
    with read_only(conn_id) as queue:
        return {
            "errors": [serializers.row(each) for each in queue.error_groups(topic, size)],
            **serializers.stamp(queue),
        }


@router.get("/{conn_id}/audit")
def audit(conn_id: ConnId, topic: Text = None, after: Place = None, size: Size = 50) -> Document:
    """Return the audit log, the newest line first."""
    with read_only(conn_id) as queue:
        found = queue.audit_trail(topic or None, after=after, size=size + 1)
        lines = []
        for each in found[:size]:
            line = serializers.row(each)
            lines.append({"id": line.pop("audit_id"), **line})
        return {"audit": lines, "next": lines[-1]["id"] if len(found) > size else None, **serializers.stamp(queue)}


def _charts(topic: str, minutes: Sequence[Row], hours: Sequence[Row]) -> Document:
    """Return a topic's last hour and day. `sampled` is the share of ended tasks that was read."""
    hour, day = ([each for each in ended if each.topic == topic] for ended in (minutes, hours))
    sampled = min((each.sampled for each in (*hour, *day)), default=1.0)
    return {"hour": serializers.spans(hour, 60), "day": serializers.spans(day, 24), "sampled": sampled}
