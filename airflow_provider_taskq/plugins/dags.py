"""DAGs that use a topic: those that push to it, wait for it, drain it or maintain it, from the serialized DAGs.

A serialized operator keeps its template fields, so a literal topic is known. A topic from a template or an upstream
task is unknown, and so is code that calls the hook or the queue itself.
"""

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.models.dag import DagModel
from airflow.models.serialized_dag import SerializedDagModel
from airflow.utils.session import create_session
from sqlalchemy import func, select

from airflow_provider_taskq.links import TaskQTopicLink
from airflow_provider_taskq.plugins.auth import DEFAULT_CONN_ID

MARK = f"_link_{TaskQTopicLink.__name__}"  # the extra link of TaskQ's operators and their subclasses
DAGS_PER_REQUEST = 300
_TRIGGER = "airflow_provider_taskq.triggers."


@dataclass(frozen=True, slots=True)
class TopicUse:
    """A task of a DAG, or its schedule (`task_id` None), that uses a topic.

    `topic` is None if a template gives the topic.
    """

    dag_id: str
    task_id: str | None
    role: str  # pushes, waits, drains, maintains, starts
    topic: str | None
    conn_id: str


@dataclass(frozen=True, slots=True)
class TopicUses:
    """The uses of a topic that a user may see.

    `templated` has the tasks whose topic is a template. `partial` is True if the next request has to read further DAGs.
    """

    found: Collection[TopicUse]
    templated: Collection[TopicUse]
    partial: bool


_known: dict[str, tuple[str, tuple[TopicUse, ...]]] = {}  # by DAG: the hash of its serialized form, and its uses
_lock = threading.Lock()


def uses_of(topic: str, conn_id: str, user: BaseUser) -> TopicUses:
    """Return the uses of a topic in the DAGs that a user may read. Read the DAGs that changed since the last call."""
    readable = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
    partial = _refresh()
    with _lock:
        uses = [use for dag_id, (_, of_dag) in _known.items() if dag_id in readable for use in of_dag]
    uses = sorted((use for use in uses if use.conn_id == conn_id), key=lambda use: (use.dag_id, use.task_id or ""))
    templated = [use for use in uses if use.topic is None]
    return TopicUses([use for use in uses if use.topic == topic], templated, partial)


def _refresh() -> bool:
    """Read at most `DAGS_PER_REQUEST` changed DAGs, and return whether more DAGs have changed."""
    with create_session() as session, _lock:
        newest = (
            select(SerializedDagModel.dag_id, func.max(SerializedDagModel.created_at).label("created_at"))
            .group_by(SerializedDagModel.dag_id)
            .subquery()
        )
        rows = session.execute(
            select(SerializedDagModel.dag_id, SerializedDagModel.dag_hash, SerializedDagModel.id)
            .join(
                newest,
                (newest.c.dag_id == SerializedDagModel.dag_id) & (newest.c.created_at == SerializedDagModel.created_at),
            )
            .join(DagModel, DagModel.dag_id == SerializedDagModel.dag_id)
            .where(~DagModel.is_stale)
        ).all()
        current = {dag_id: (dag_hash, key) for dag_id, dag_hash, key in rows}
        for gone in _known.keys() - current.keys():
            del _known[gone]
        changed = {
            key: dag_id for dag_id, (dag_hash, key) in current.items() if _known.get(dag_id, ("",))[0] != dag_hash
        }
        wanted = list(changed)[:DAGS_PER_REQUEST]
        for model in session.scalars(select(SerializedDagModel).where(SerializedDagModel.id.in_(wanted))):
            _known[model.dag_id] = (model.dag_hash, tuple(_uses_in(model.dag_id, model.data or {})))
        return len(changed) > len(wanted)


def _uses_in(dag_id: str, data: Mapping[str, Any]) -> Iterator[TopicUse]:
    """Yield the uses of topics in the tasks and the schedule of a serialized DAG."""
    dag = data.get("dag", {})
    for task in dag.get("tasks", []):
        fields = task.get("__var", task)
        if MARK in fields.get("_operator_extra_links", {}).values():
            yield from _uses_of_task(dag_id, fields)
    for trigger in _triggers(dag.get("timetable")):
        kwargs = trigger.get("kwargs", {})
        yield TopicUse(dag_id, None, "starts", kwargs.get("topic"), kwargs.get("taskq_conn_id") or DEFAULT_CONN_ID)


def _uses_of_task(dag_id: str, fields: Mapping[str, Any]) -> Iterator[TopicUse]:
    """Yield the use of a task. For a mapped task, yield a use for each topic that the task is expanded over."""
    given = {**fields, **fields.get("partial_kwargs", {})}
    if "topic" not in fields.get("template_fields", ()):
        return
    conn_id = given.get("taskq_conn_id")
    role, task_id = _role(fields), fields["task_id"]
    expanded = fields.get("expand_input", {}).get("value", {})
    expanded = expanded.get("__var", expanded) if isinstance(expanded, Mapping) else {}
    topics = expanded.get("topic", [given.get("topic")]) if isinstance(expanded, Mapping) else [None]
    for topic in topics if isinstance(topics, list) else [None]:
        written = isinstance(topic, str) and "{{" not in topic and "{%" not in topic
        yield TopicUse(dag_id, task_id, role, topic if written else None, conn_id or DEFAULT_CONN_ID)


def _role(fields: Mapping[str, Any]) -> str:
    """Return the role of a task, from the class name of its operator.

    The role of a subclass follows from the fields that only one kind of operator has.
    """
    kind, names = fields.get("task_type", ""), set(fields.get("template_fields", ()))
    if "Push" in kind or "Ticks" in kind or "tasks" in names:
        return "pushes"
    if fields.get("_is_sensor") or "Sensor" in kind:
        return "waits"
    drains = any(word in kind for word in ("Process", "Decorated", "Spark", "Complete"))
    return "drains" if drains or "op_args" in names else "maintains"


def _triggers(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the triggers of TaskQ among the asset watchers of a serialized schedule."""
    if isinstance(value, Mapping):
        if str(value.get("classpath", "")).startswith(_TRIGGER):
            yield value
        inner: Iterable[Any] = value.values()
    else:
        inner = value if isinstance(value, list) else ()
    for each in inner:
        yield from _triggers(each)
