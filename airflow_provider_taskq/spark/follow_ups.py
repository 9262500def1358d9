"""Follow-ups: new tasks and junctions that are carried out with the decisions they belong to.

A DataFrame of decisions may have three columns more. `push`: the new tasks, an array of structs or the same as a JSON
text, with the fields `topic` and `identifier`, and if wanted `payload` (JSON text), `reference`, `suspended`,
`available_at`, `delay`, `ttl` (seconds), `priority`, `depends_on` (pairs of topic and identifier). `junctions`:
`topic`, `groups` (lists of identifiers), `junction`. `continued`: whether they are carried out; where it is null or
missing, for a SUCCESS only.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from airflow_provider_taskq.queue import InvalidTask, Junction, Result, TaskQueueError
from airflow_provider_taskq.queue.encoding import interval_text
from airflow_provider_taskq.queue.errors import translate_errors
from airflow_provider_taskq.queue.task_input import TaskInput, split_into_chunks, to_new_tasks
from airflow_provider_taskq.spark.staging import Staged
from airflow_provider_taskq.spark.writers import CompleteWriter, check_of

COLUMNS = frozenset({"continued", "push", "junctions"})
_OPTIONAL = ("payload", "reference", "suspended", "available_at", "delay", "ttl", "priority", "depends_on")
_FIELDS = {"topic", "identifier", *_OPTIONAL}
_COPY_TASKS = (
    "COPY taskq.staged_task (stage, part, attempt, place, parent, topic, identifier, payload, reference, suspended,"
    " available_at, delay, ttl, priority, depends_on) FROM STDIN"
)
# The columns that a consumer may insert, who has no right to push.
_COPY_CONTINUED = "COPY taskq.staged_task (stage, part, attempt, place, parent, suspended) FROM STDIN"
_COPY_JUNCTIONS = "COPY taskq.staged_junction (stage, part, attempt, parent, topic, groups, junction) FROM STDIN"

Row = tuple[Any, ...]


def follow_up(topic: str, given: TaskInput) -> dict[str, Any]:
    """A new task as a value of the column `push`; InvalidTask where it breaks a rule that needs no database."""
    chunk = next(split_into_chunks(topic, to_new_tasks(topic, [given])))
    chunk.columns()
    task = chunk.tasks[0]
    return {
        "topic": topic,
        "identifier": task.identifier,
        "payload": chunk.payloads[0],
        "reference": task.reference,
        "suspended": task.suspended,
        "available_at": None if task.available_at is None else task.available_at.isoformat(),
        "delay": None if task.delay is None else task.delay.total_seconds(),
        "ttl": None if task.ttl is None else task.ttl.total_seconds(),
        "priority": task.priority,
        "depends_on": [list(pair) for pair in task.depends_on] or None,
    }


class FollowUpWriter(DataSourceArrowWriter):
    """The writer of decisions that have follow-ups: it stages these itself, and leaves the rest to `CompleteWriter`.

    The follow-ups of a try are staged through a connection of their own, which is open from before the decisions are
    staged and commits after them. A server that crashes in between breaks it, and the try fails: so a try that
    reports its decisions has its follow-ups as well, or the crash has emptied the stage, and the decisions are found
    short.
    """

    def __init__(self, decisions: CompleteWriter) -> None:
        self.decisions = decisions

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stages one partition, on an executor."""
        context = TaskContext.get()
        if context is None:
            raise TaskQueueError("decisions are staged by Spark's tasks only")
        place = (self.decisions.stage, context.partitionId(), context.taskAttemptId())
        with ExitStack() as stack, translate_errors():
            staging = Staging(place, lambda: stack.enter_context(self.decisions.route.connect_executor()))
            staged = self.decisions.write(staging.kept_apart(iterator))
            staging.commit(check_of(self.decisions.options, self.decisions.stage))
        return staged

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Carries the stage out, on the driver."""
        self.decisions.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Forgets what was staged."""
        self.decisions.abort(messages)


@dataclass(slots=True)
class Staging:
    """The follow-ups of one try; it connects when the first one comes."""

    place: tuple[str, int, int]
    connect: Callable[[], psycopg.Connection[Any]]
    conn: psycopg.Connection[Any] | None = None
    count: int = 0

    def kept_apart(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches without the columns of follow-ups, which are staged on the way."""
        for batch in batches:
            rows = _rows_of(batch)
            if any(rows):
                self._stage(*rows)
            yield batch.select([name for name in batch.schema.names if name not in COLUMNS])

    def commit(self, check: tuple[str, Sequence[object]]) -> None:
        """Ends the transaction, if there is one, with a check: decisions may be carried out since theirs was."""
        if self.conn is not None:
            self.conn.execute(check[0].encode(), check[1])
            self.conn.commit()

    def _stage(self, continued: list[Row], tasks: list[Row], junctions: list[Row]) -> None:
        """Sends the rows of one batch."""
        if self.conn is None:
            self.conn = self.connect()
        cursor = self.conn.cursor()
        for statement, rows in ((_COPY_CONTINUED, continued), (_COPY_TASKS, tasks)):  # tasks take a producer's rights
            if rows:
                with cursor.copy(statement.encode()) as copy:
                    for row in rows:
                        copy.write_row((*self.place, self.count, *row))
                        self.count += 1
        if junctions:
            with cursor.copy(_COPY_JUNCTIONS) as copy:
                for row in junctions:
                    copy.write_row((*self.place, *row))


def _rows_of(batch: pa.RecordBatch) -> tuple[list[Row], list[Row], list[Row]]:
    """Whether decisions are continued, where they say so, and the rows of both tables; each from parent on."""
    columns = [name for name in ("push", "junctions", "continued") if name in batch.schema.names]
    if all(batch.column(name).null_count == batch.num_rows for name in columns):
        return [], [], []
    said: list[Row] = []
    tasks: list[Row] = []
    junctions: list[Row] = []
    for values in batch.select(["sequence", "result", *columns]).to_pylist():
        sequence, success = values["sequence"], values["result"] in ("SUCCESS", int(Result.SUCCESS))
        continued = values.get("continued")
        if continued is not None and continued != success:
            said.append((sequence, continued))  # see sql/api/stages.sql
        if continued is False or (continued is None and not success):
            continue
        with _about(sequence):
            tasks += [_task_row(sequence, task) for task in _listed(values.get("push"), "push")]
            junctions += [_junction_row(sequence, group) for group in _listed(values.get("junctions"), "junctions")]
    return said, tasks, junctions


class _about:  # noqa: N801 -- a context manager is called like a function
    """Says of an error which decision it is about."""

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence

    def __enter__(self) -> None:
        """Nothing to begin."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Names the task, and nothing that the follow-up holds."""
        if isinstance(error, InvalidTask):
            raise InvalidTask(f"the follow-up of task {self.sequence}: {error}") from None


def _listed(value: object, column: str) -> Sequence[Mapping[str, Any]]:
    """The structs of a column, from an array or a JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise InvalidTask(f"its {column} is not JSON that can be decoded") from None
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise InvalidTask(f"its {column} is no list of structs")
    return value


def _task_row(parent: int, task: Mapping[str, Any]) -> Row:
    """A new task from parent on."""
    if unknown := sorted(set(task) - _FIELDS):
        raise InvalidTask(f"a new task has no field {unknown[0]!r}; there are {', '.join(sorted(_FIELDS))}")
    topic, identifier = (_text(task, name) for name in ("topic", "identifier"))
    payload, reference, suspended, available_at, delay, ttl, priority, depends_on = map(task.get, _OPTIONAL)
    return (
        parent, topic, identifier, payload, reference, suspended, _moment(available_at), _interval(delay),
        _interval(ttl), priority, None if not depends_on else json.dumps(_pairs(depends_on)),
    )  # fmt: skip


def _junction_row(parent: int, groups: Mapping[str, Any]) -> Row:
    """Groups from parent on."""
    found, junction = groups.get("groups"), groups.get("junction") or Junction.SINGULAR
    if not isinstance(found, list) or not all(isinstance(group, list) for group in found):
        raise InvalidTask("its groups are no list of lists of identifiers")
    return parent, _text(groups, "topic"), json.dumps(found), str(junction)


def _text(values: Mapping[str, Any], name: str) -> str:
    """A text that must be there."""
    value = values.get(name)
    if not isinstance(value, str) or "\x00" in value:
        raise InvalidTask(f"its {name} is no text, or holds a NUL")
    return value


def _moment(value: object) -> datetime | None:
    """A moment with a time zone, from a text too."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidTask("its available_at is no moment") from None
    if value is None:
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidTask("its available_at has no time zone")
    return value


def _interval(value: object) -> str | None:
    """A duration for PostgreSQL, from seconds too."""
    if value is None or isinstance(value, timedelta):
        return interval_text(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidTask("its delay or ttl is no duration")
    try:
        return interval_text(timedelta(seconds=value))
    except (OverflowError, ValueError):
        raise InvalidTask("its delay or ttl is no duration") from None


def _pairs(value: Sequence[Any]) -> list[list[str]]:
    """Pairs of topic and identifier, also from structs."""
    pairs = [list(pair.values()) if isinstance(pair, dict) else list(pair) for pair in value]
    if not all(len(pair) == 2 and all(isinstance(text, str) for text in pair) for pair in pairs):
        raise InvalidTask("its depends_on is no list of pairs of a topic and an identifier")
    return pairs
