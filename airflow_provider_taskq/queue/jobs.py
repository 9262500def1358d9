"""Distributed jobs: the slices that executors read, and the stages that they fill and their driver commits."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString, NamedTuple, TypeAlias

from psycopg.rows import tuple_row

from airflow_provider_taskq.queue.client import TaskQueue
from airflow_provider_taskq.queue.connection import open_cursor
from airflow_provider_taskq.queue.errors import translate_errors
from airflow_provider_taskq.queue.models import Condition, Insertion, Owner, Result

Chunk: TypeAlias = bytes | bytearray | memoryview
Slice: TypeAlias = AbstractContextManager[Iterable[Chunk]]
"""The messages of a COPY in the binary format, which has to be read inside of the context."""
LeaseKey: TypeAlias = tuple[str | None, int | None]
"""The name and the fence of an owner; None and None for a push, which has no owner."""

# The columns of a COPY into each staging table.
_STAGED = {
    "staged": "stage, part, attempt, sequence, result, output, error, delay, continued",
    "staged_task": (
        "stage, part, attempt, place, parent, topic, identifier, payload, reference, suspended, available_at, delay,"
        " ttl, priority, depends_on, junction"
    ),
}


class Bounds(NamedTuple):
    """A range of sequences, both ends included, and the number of tasks in it."""

    low: int
    high: int
    size: int


class StageReport(NamedTuple):
    """The numbers of a committed stage. All are None if the stage was abandoned.

    `completed` counts the decided or pushed tasks, `pushed` the follow-ups, `results` the tasks with each result from
    FAILURE on, and `returned` the decisions that the commit dropped.
    """

    completed: int | None
    pushed: int | None
    results: Sequence[int] | None
    returned: int | None

    @property
    def by_result(self) -> Mapping[Result, int]:
        """The decided tasks by result."""
        return {Result(number): count for number, count in enumerate(self.results or ()) if count}


@dataclass(slots=True)
class TaskRange:
    """Tasks of a topic: inclusive bounds of sequence and creation, and sets of values. None is no condition."""

    low: int | None = None
    high: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    states: frozenset[int] | None = None
    identifiers: frozenset[str] | None = None

    def arguments(self) -> Sequence[object]:
        """Return the arguments of taskq.task_bounds from p_low to p_until."""
        states, identifiers = (None if each is None else sorted(each) for each in (self.states, self.identifiers))
        return self.low, self.high, states, identifiers, self.since, self.until


class JobQueue(TaskQueue):
    """The queue for a program that divides its work between many processes.

    The driver claims tasks and computes bounds. Each executor reads the slice of one range, and stages its rows. The
    driver then commits the rows of the successful attempts. Slices and rows are in PostgreSQL's binary COPY format.
    """

    # Claims

    def claim_identifiers(self, topic: str, owner: Owner, size: int, condition: Condition) -> int:
        """Claim up to `size` tasks under a condition, identifier by identifier, and return their number."""
        return self._number(
            "SELECT taskq.claim_batch(%s::text, %s::text, %s::bigint, %s::int, %s::text)",
            (topic, owner.name, owner.fence, size, condition),
        )

    def defer_held(self, owner: Owner, until: datetime | None) -> None:
        """Leave the held tasks out of later reads of this lease. With `until`, only those claimed until then."""
        self._rows(
            "SELECT taskq.defer_held_tasks(%s::text, %s::bigint, %s::timestamptz)", (owner.name, owner.fence, until)
        )

    # Slices

    def held_bounds(
        self, lease: LeaseKey, topic: str | None, parts: int, until: datetime | str | None = None
    ) -> list[Bounds]:
        """Split the held tasks into at most `parts` ranges of nearly equal size.

        :param topic: None for the tasks of all topics.
        :param until: only the tasks that were claimed until this moment.
        :raises LeaseLost: if the lease is gone.
        """
        return self._bounds(
            "SELECT * FROM taskq.held_bounds(%s::text, %s::bigint, %s::text, %s::int, %s::timestamptz)",
            (*lease, topic, parts, until),
        )

    def task_bounds(self, topic: str, tasks: TaskRange, parts: int) -> list[Bounds]:
        """Split tasks of a topic into at most `parts` ranges of nearly equal size."""
        return self._bounds(
            "SELECT * FROM taskq.task_bounds(%s::text, %s::bigint, %s::bigint, %s::int[], %s::text[],"
            " %s::timestamptz, %s::timestamptz, %s::int)",
            (topic, *tasks.arguments(), parts),
        )

    def _bounds(self, call: LiteralString, arguments: Sequence[object]) -> list[Bounds]:
        return [Bounds(*row) for row in self._rows(call, arguments)]

    def log_end(self, topic: str, after: int, size: int | None = None) -> int:
        """Return the last sequence of a topic's log after a sequence, or the last of the next `size` tasks.

        :raises TaskQueueError: if this database has not reached the sequence `after`.
        """
        return self._number("SELECT taskq.log_end(%s::text, %s::bigint, %s::bigint)", (topic, after, size))

    def held_slice(
        self, columns: Iterable[str], lease: LeaseKey, topic: str | None, low: int, high: int, until: str | None
    ) -> Slice:
        """Read a range of the held tasks, in the order of their sequences in each topic.

        :raises LeaseLost: if the lease is gone.
        """
        call = "held_slice(%s::text, %s::bigint, %s::text, %s::bigint, %s::bigint, %s::timestamptz)"
        return self._copy_out(columns, call, (*lease, topic, low, high, until))

    def task_slice(self, columns: Iterable[str], topic: str, tasks: TaskRange, *, bulky: bool) -> Slice:
        """Read tasks of a topic in the order of their sequences.

        :param bulky: whether `columns` have the payload or the output.
        """
        call = (
            "task_slice(%s::text, %s::bigint, %s::bigint, %s::int[], %s::text[], %s::timestamptz, %s::timestamptz,"
            " %s::boolean)"
        )
        return self._copy_out(columns, call, (topic, *tasks.arguments(), bulky))

    def log_slice(self, columns: Iterable[str], topic: str, low: int, high: int) -> Slice:
        """Read a range of a topic's log in the order of its sequences."""
        return self._copy_out(columns, "log_slice(%s::text, %s::bigint, %s::bigint)", (topic, low, high))

    @contextmanager
    def _copy_out(
        self, columns: Iterable[str], call: LiteralString, arguments: Sequence[object]
    ) -> Iterator[Iterable[Chunk]]:
        statement = f"COPY (SELECT {', '.join(columns)} FROM taskq.{call}) TO STDOUT (FORMAT binary)"  # noqa: S608
        with translate_errors(), open_cursor(self.conn, tuple_row).copy(statement.encode(), arguments) as copy:
            yield copy

    # Stages

    def open_stage(
        self, owner: LeaseKey = (None, None), condition: Condition = Condition.NONE, *, in_rounds: bool = False
    ) -> tuple[str, datetime]:
        """Open a stage of decisions, or without an owner of a push. Return its number, and the server's time.

        :param condition: the condition of the claim. The commit drops decisions that overtake an earlier task.
        :param in_rounds: whether the owner claims again after the commit. A task that would be READY at once then stays
            held: after a failure within its ttl, which the queue does not record, or a snooze of less than a second.
        """
        [(stage, now)] = self._rows(
            "SELECT taskq.open_stage(%s::text, %s::bigint, %s::text, %s::boolean)::text, clock_timestamp()",
            (*owner, condition, in_rounds),
        )
        return stage, now

    def stage(self, table: str, chunks: Iterable[Chunk]) -> None:
        """Copy rows into the table `staged` or `staged_task`. `check_stage` has to follow in the transaction."""
        statement = f"COPY taskq.{table} ({_STAGED[table]}) FROM STDIN (FORMAT binary)"
        with translate_errors(), open_cursor(self.conn, tuple_row).copy(statement.encode()) as copy:
            for chunk in chunks:
                copy.write(chunk)

    def check_stage(self, stage: str, lease: LeaseKey) -> None:
        """Check that a stage still accepts the rows of this transaction.

        :raises LeaseLost: if the lease is gone.
        :raises TaskQueueError: if the stage was committed or abandoned.
        """
        self._rows("SELECT taskq.check_stage(%s::uuid, %s::text, %s::bigint)", (stage, *lease))

    def count_staged(self, stage: str) -> int:
        """Return the number of decisions in a stage."""
        return self._number("SELECT taskq.count_staged(%s::uuid)", (stage,))

    def commit_stage(
        self,
        stage: str,
        attempts: Iterable[tuple[int, int, int]],
        lease: LeaseKey,
        topic: str | None = None,
        insertion: str = Insertion.APPEND,
    ) -> int:
        """Commit the rows of successful attempts. Return the number of tasks; a repeated call changes nothing.

        :param attempts: a part, the number of its successful attempt, and how many rows that attempt has staged.
        :param topic: the topic of a push; None if each task names its own.
        """
        numbers = [list(column) for column in zip(*attempts, strict=True)] or [[], [], []]
        return self._number(
            "SELECT taskq.commit_stage(%s::uuid, %s::int[], %s::bigint[], %s::bigint[], %s::text, %s::bigint,"
            " %s::text, %s::text)",
            (stage, *numbers, *lease, topic, insertion),
        )

    def close_stage(self, stage: str) -> StageReport:
        """Delete the rows of a stage. If it was committed, notify the consumers of the topics that its rows name."""
        call: LiteralString = "SELECT completed, pushed, results, returned FROM taskq.close_stage(%s::uuid)"
        return StageReport(*self._rows(call, (stage,))[0])

    def begin_stream_batch(self, stream: str, batch: int, query: str | None) -> bool:
        """Record that a stream commits a batch. Return False if it has committed this batch or a later one.

        :param query: the ID of Spark's query, whose checkpoint numbers the batches; None if the caller numbers them.
        """
        return self._flag("SELECT taskq.begin_stream_batch(%s::text, %s::bigint, %s::text)", (stream, batch, query))
