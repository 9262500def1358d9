"""Follow-ups: new tasks to push and groups to release, in the transaction of their decision.

A DataFrame of decisions may have three more columns. `push` and `junctions` are arrays of structs, or JSON texts of the
same form.

- `push`: new tasks, with the fields `topic` and `identifier`, and optionally `payload` (JSON text), `reference`,
  `suspended`, `available_at`, `delay` and `ttl` (seconds), `priority`, `depends_on` (pairs of topic and identifier).
- `junctions`: groups to release, with the fields `topic`, `groups` (lists of identifiers) and optionally `junction`.
- `continued`: whether the follow-ups are pushed and released. If it is null or missing, those of a SUCCESS are.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from airflow_provider_taskq.queue import InvalidTask, Junction, Result
from airflow_provider_taskq.queue.arguments import to_seconds, to_timedelta
from airflow_provider_taskq.queue.encoding import interval_text
from airflow_provider_taskq.queue.errors import InvalidArgument, translate_errors
from airflow_provider_taskq.queue.task_input import TaskInput, split_into_chunks, to_new_tasks
from airflow_provider_taskq.spark.encoding import pairs_text
from airflow_provider_taskq.spark.staging import Check, StagedAttempt, task_context
from airflow_provider_taskq.spark.writers import CompleteWriter, stage_check

COLUMNS = frozenset({"continued", "push", "junctions"})
_OPTIONAL = ("payload", "reference", "suspended", "available_at", "delay", "ttl", "priority", "depends_on")
_FIELDS = {"topic", "identifier", *_OPTIONAL}
_COPY_TASKS = (
    "COPY taskq.staged_task (stage, part, attempt, place, parent, topic, identifier, payload, reference, suspended,"
    " available_at, delay, ttl, priority, depends_on) FROM STDIN"
)
# A consumer without the right to push may insert these columns only.
_COPY_CONTINUED = "COPY taskq.staged_task (stage, part, attempt, place, parent, suspended) FROM STDIN"
_COPY_JUNCTIONS = "COPY taskq.staged_junction (stage, part, attempt, parent, topic, groups, junction) FROM STDIN"

Row = tuple[Any, ...]


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


class FollowUpWriter(DataSourceArrowWriter):
    """The writer of decisions with follow-ups: it stages the follow-ups, and leaves the decisions to `CompleteWriter`.

    The follow-ups of an attempt have a connection of their own. It opens before the decisions are staged, and its
    transaction commits after theirs. If the server crashes in between, the connection breaks and the attempt fails. So
    an attempt that reports its decisions has staged its follow-ups too. A crash after the report empties the stage, and
    the driver finds fewer decisions than the attempt reported.
    """

    def __init__(self, decisions: CompleteWriter) -> None:
        self.decisions = decisions

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedAttempt:
        """Stage one partition, on an executor."""
        context, decisions = task_context(), self.decisions
        key = (decisions.stage, context.partitionId(), context.taskAttemptId())
        with ExitStack() as stack, translate_errors():
            stager = FollowUpStager(key, lambda: stack.enter_context(decisions.connection_info.connect_executor()))
            staged = decisions.write(stager.stage_and_remove(iterator))
            stager.commit(stage_check(decisions.options, decisions.stage))
        return staged

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Complete the tasks by the staged decisions, on the driver."""
        self.decisions.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the staged rows."""
        self.decisions.abort(messages)


@dataclass(slots=True)
class FollowUpStager:
    """Stages the follow-ups of one attempt, on a connection that it opens for the first of them.

    :param key: stage, partition and attempt.
    """

    key: tuple[str, int, int]
    connect: Callable[[], psycopg.Connection[Any]]
    conn: psycopg.Connection[Any] | None = None
    count: int = 0

    def stage_and_remove(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stage the follow-ups of each batch, and yield the batch without their columns."""
        for batch in batches:
            rows = _rows_of(batch)
            if any(rows):
                self._stage(*rows)
            yield batch.select([name for name in batch.schema.names if name not in COLUMNS])

    def commit(self, check: Check) -> None:
        """Commit the staged rows, unless the check fails because the stage was completed in the meantime."""
        if self.conn is not None:
            self.conn.execute(check[0].encode(), check[1])
            self.conn.commit()

    def _stage(self, continued: list[Row], tasks: list[Row], junctions: list[Row]) -> None:
        if self.conn is None:
            self.conn = self.connect()
        cursor = self.conn.cursor()
        for statement, rows in ((_COPY_CONTINUED, continued), (_COPY_TASKS, tasks)):
            if rows:
                with cursor.copy(statement.encode()) as copy:
                    for row in rows:
                        copy.write_row((*self.key, self.count, *row))
                        self.count += 1
        if junctions:
            with cursor.copy(_COPY_JUNCTIONS) as copy:
                for row in junctions:
                    copy.write_row((*self.key, *row))


def _rows_of(batch: pa.RecordBatch) -> tuple[list[Row], list[Row], list[Row]]:
    """Return explicit values of `continued`, new tasks and junctions, as rows that begin with the column parent."""
    columns = [name for name in ("push", "junctions", "continued") if name in batch.schema.names]
    if all(batch.column(name).null_count == batch.num_rows for name in columns):
        return [], [], []
    explicit: list[Row] = []
    tasks: list[Row] = []
    junctions: list[Row] = []
    for values in batch.select(["sequence", "result", *columns]).to_pylist():
        sequence, success = values["sequence"], values["result"] in ("SUCCESS", int(Result.SUCCESS))
        continued = values.get("continued")
        if continued is not None and continued != success:
            explicit.append((sequence, continued))  # other values are implied: see sql/api/staged_decisions.sql
        if continued is False or (continued is None and not success):
            continue
        with _naming_task(sequence):
            tasks += [_task_row(sequence, task) for task in _structs(values.get("push"), "push")]
            junctions += [_junction_row(sequence, group) for group in _structs(values.get("junctions"), "junctions")]
    return explicit, tasks, junctions


@contextmanager
def _naming_task(sequence: int) -> Iterator[None]:
    """Name the decided task in an error. The error quotes nothing of the follow-up, which may hold private data."""
    try:
        yield
    except InvalidTask as error:
        raise InvalidTask(f"the follow-up of task {sequence}: {error}") from None


def _structs(value: object, column: str) -> Sequence[Mapping[str, Any]]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise InvalidTask(f"its {column} is not JSON") from None
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise InvalidTask(f"its {column} is not a list of structs")
    return value


def _task_row(parent: int, task: Mapping[str, Any]) -> Row:
    if unknown := sorted(set(task) - _FIELDS):
        raise InvalidTask(f"unknown field {unknown[0]!r} of a new task: use {', '.join(sorted(_FIELDS))}")
    topic, identifier = (_text(task, name) for name in ("topic", "identifier"))
    payload, reference, suspended, available_at, delay, ttl, priority, depends_on = map(task.get, _OPTIONAL)
    return (
        parent, topic, identifier, payload, reference, suspended, _moment(available_at), _interval(delay, "delay"),
        _interval(ttl, "ttl"), priority, _dependencies(depends_on),
    )  # fmt: skip


def _junction_row(parent: int, groups: Mapping[str, Any]) -> Row:
    found, junction = groups.get("groups"), groups.get("junction") or Junction.SINGULAR
    if not isinstance(found, list) or not all(isinstance(group, list) for group in found):
        raise InvalidTask("its groups are not a list of lists of identifiers")
    return parent, _text(groups, "topic"), json.dumps(found), str(junction)


def _text(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name)
    if not isinstance(value, str) or "\x00" in value:
        raise InvalidTask(f"its {name} is not a text, or holds a NUL")
    return value


def _moment(value: object) -> datetime | None:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidTask("its available_at is not a timestamp") from None
    if value is None:
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidTask("its available_at has no time zone")
    return value


def _interval(value: Any, name: str) -> str | None:
    """Return a duration as text of an interval of PostgreSQL."""
    try:
        return interval_text(to_timedelta(value, name))
    except InvalidArgument as error:
        raise InvalidTask(str(error)) from None


def _dependencies(value: object) -> str | None:
    try:
        return pairs_text(value) if value else None
    except ValueError as error:
        raise InvalidTask(f"its depends_on {error}") from None
