"""Follow-ups: new tasks to push and groups to release, in the transaction of their decision.

A DataFrame of decisions may have three more columns. `push` and `junctions` are arrays of structs, or JSON texts of the
same form.

- `push`: new tasks, with the columns of a push as fields: `topic`, `identifier`, and optionally the others. In a JSON
  text, `available_at` is a text in ISO 8601, `delay` and `ttl` are seconds or texts such as 90s, and a `payload` is
  JSON text or any value but a text.
- `junctions`: groups to release, with the fields `topic`, `groups` (lists of identifiers) and optionally `junction`.
- `continued`: whether the follow-ups are pushed and released. If it is null or missing, those of a SUCCESS are.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from airflow_provider_taskq.queue import InvalidTask, Junction, Result
from airflow_provider_taskq.queue.arguments import to_seconds
from airflow_provider_taskq.queue.task_input import TaskInput, split_into_chunks, to_new_tasks
from airflow_provider_taskq.spark.columns import plain_batch
from airflow_provider_taskq.spark.encoding import (
    Attempt,
    Copy,
    encode_decisions,
    encode_tasks,
    optional,
    result_numbers,
)

# The fields of a new task in a JSON text, and what each is called in an error.
_FIELDS = {
    "topic": (pa.string(), "a text"),
    "identifier": (pa.string(), "a text"),
    "payload": (pa.string(), "JSON"),
    "reference": (pa.string(), "a text"),
    "suspended": (pa.bool_(), "true or false"),
    "available_at": (pa.timestamp("us", "UTC"), "a timestamp with a time zone"),
    "delay": (pa.float64(), "a duration"),
    "ttl": (pa.float64(), "a duration"),
    "priority": (pa.int64(), "a whole number"),
    "depends_on": (pa.string(), "a list of pairs of a topic and an identifier"),
}


def follow_up(topic: str, task: TaskInput) -> dict[str, Any]:
    """Return a new task as a value of the column `push`. Raises InvalidTask if it breaks a rule of its own columns."""
    chunk = next(split_into_chunks(topic, to_new_tasks(topic, [task])))
    chunk.columns()
    new = chunk.tasks[0]
    return {
        "topic": topic,
        "identifier": new.identifier,
        "payload": chunk.payloads[0],
        "reference": new.reference,
        "suspended": new.suspended,
        "available_at": None if new.available_at is None else new.available_at.isoformat(),
        "delay": to_seconds(new.delay, "delay"),
        "ttl": to_seconds(new.ttl, "ttl"),
        "priority": new.priority,
        "depends_on": [list(pair) for pair in new.depends_on] or None,
    }


def decision_copies(batch: pa.RecordBatch, attempt: Attempt) -> list[Copy]:
    """Encode decisions with their follow-ups. Raises InvalidTask, which names the decided task, for an invalid one."""
    copies = [encode_decisions(batch, attempt)]
    if any(optional(batch, name).null_count < batch.num_rows for name in ("push", "junctions")):
        success = pc.equal(result_numbers(batch), int(Result.SUCCESS))
        followed = batch.filter(pc.coalesce(optional(batch, "continued").cast(pa.bool_()), success))
        copies += [*_pushes(followed, attempt), *_junctions(followed, attempt)]
    return copies


def _pushes(decisions: pa.RecordBatch, attempt: Attempt) -> Iterator[Copy]:
    column, sequences = optional(decisions, "push"), decisions.column("sequence").cast(pa.int64())
    if kinds.is_nested(column.type):
        parents = sequences.take(pc.list_parent_indices(column))
        tasks = plain_batch(pa.RecordBatch.from_struct_array(pc.list_flatten(column)))
    else:
        given = list(_structs(decisions, "push"))
        parents = pa.array([sequence for sequence, _ in given], pa.int64())
        tasks = _tasks_of(given)

    def described(place: int) -> str:  # nothing of the follow-up, which may hold private data
        return f"the follow-up of task {parents[place]}"

    if len(parents):
        for name in ("topic", "identifier"):
            if (texts := optional(tasks, name)).null_count:
                raise InvalidTask(f"{described(pc.index(pc.is_null(texts), True).as_py())}: its {name} is not a text")
        yield encode_tasks(tasks, attempt, described, parents)


def _tasks_of(given: Sequence[tuple[int, Mapping[str, Any]]]) -> pa.RecordBatch:
    """Return tasks from JSON, each with the sequence of the decided task, as columns of a push."""
    columns: dict[str, list[Any]] = {name: [] for name in _FIELDS}
    for sequence, task in given:
        with _naming_task(sequence):
            if unknown := sorted(set(task) - set(_FIELDS)):
                raise InvalidTask(f"unknown field {unknown[0]!r} of a new task: use {', '.join(sorted(_FIELDS))}")
            for name, (kind, wanted) in _FIELDS.items():
                try:
                    columns[name].append(pa.scalar(_field(name, task.get(name)), kind))
                except (TypeError, ValueError, OverflowError):
                    raise InvalidTask(f"its {name} is not {wanted}") from None
    return pa.record_batch([pa.array(columns[name], kind) for name, (kind, _) in _FIELDS.items()], names=list(_FIELDS))


def _field(name: str, value: Any) -> Any:
    """Return a value of JSON as one that Arrow takes. Raises ValueError for one that is none of the field."""
    if name == "available_at" and value is not None:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            raise ValueError
        return moment
    if name in ("delay", "ttl"):
        return to_seconds(value, name)
    return json.dumps(value) if name in ("payload", "depends_on") and not isinstance(value, str | None) else value


def _junctions(decisions: pa.RecordBatch, attempt: Attempt) -> Iterator[Copy]:
    """Encode groups to release: rows of the table of new tasks whose payload lists the groups."""
    parents, topics, groups, junctions = [], [], [], []
    for sequence, released in _structs(decisions, "junctions"):
        with _naming_task(sequence):
            found, topic = released.get("groups"), released.get("topic")
            if not isinstance(found, list) or not all(isinstance(group, list) for group in found):
                raise InvalidTask("its groups are not a list of lists of identifiers")
            if not isinstance(topic, str) or "\x00" in topic:
                raise InvalidTask("its topic is not a text, or holds a NUL")
            parents.append(sequence)
            topics.append(topic)
            groups.append(json.dumps(found))
            junctions.append(str(released.get("junction") or Junction.SINGULAR))
    if parents:
        columns = [pa.array(texts, pa.string()) for texts in (topics, groups, junctions)]
        released = pa.record_batch(columns, names=["topic", "payload", "junction"])
        yield encode_tasks(released, attempt, lambda place: f"the groups of task {parents[place]}", pa.array(parents))


def _structs(decisions: pa.RecordBatch, name: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the structs of a column, each with the sequence of the decided task."""
    rows = zip(decisions.column("sequence").to_pylist(), optional(decisions, name).to_pylist(), strict=True)
    for sequence, given in rows:
        with _naming_task(sequence):
            value = given
            if isinstance(value, str):
                try:
                    value = json.loads(value)
                except (ValueError, RecursionError):
                    raise InvalidTask(f"its {name} is not JSON") from None
            if value is None:
                continue
            if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
                raise InvalidTask(f"its {name} is not a list of structs")
        for each in value:
            yield sequence, each


@contextmanager
def _naming_task(sequence: int) -> Iterator[None]:
    """Name the decided task in an error. The error quotes nothing of the follow-up, which may hold private data."""
    try:
        yield
    except InvalidTask as error:
        raise InvalidTask(f"the follow-up of task {sequence}: {error}") from None
