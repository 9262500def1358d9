"""A topic as a log: cursors, partitions, and consumer groups with their leases and progress."""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from airflow_provider_taskq.queue.arguments import to_integer
from airflow_provider_taskq.queue.connection import FunctionCaller
from airflow_provider_taskq.queue.encoding import model_row
from airflow_provider_taskq.queue.errors import InvalidArgument, trace_text
from airflow_provider_taskq.queue.models import Owner, Task

_MAX_PLACE = 2**63 - 1


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """A place in a topic's log: after the task that the log returned with this cursor.

    Cursors of one topic can be compared. To store a cursor, store its text `str(cursor)`, and restore it by
    `Cursor.parse`. The text has no other meaning.
    """

    place: int

    def __str__(self) -> str:
        return str(self.place)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Restore a cursor from its text.

        :raises InvalidArgument: for a text that is not the text of a cursor.
        """
        if text.isascii() and text.isdecimal():
            place = int(text) if len(text) < 20 else -1
            if str(place) == text and place <= _MAX_PLACE:
                return cls(place)
        raise InvalidArgument(f"invalid cursor {text!r:.50}: expected the text of a cursor that events returned")


class Events(list[tuple[Cursor, Task]]):
    """The tasks that one read of a log returned, each with the cursor after it.

    `cursor` is the place up to which the log was read, past tasks of other partitions as well. A consumer that stores
    this cursor reads nothing twice, even if the read found no task.
    """

    def __init__(self, events: Iterable[tuple[Cursor, Task]], cursor: Cursor) -> None:
        super().__init__(events)
        self.cursor = cursor


@dataclass(frozen=True, slots=True)
class PartitionLease:
    """A consumer's lease on a partition, under a fence that only grows."""

    group: str
    topic: str
    partition: int
    fence: int


class PartitionBatch(Events):
    """The next tasks of a leased partition, each with the cursor after it.

    `after` is the progress before the first task, and `cursor` the place up to which the log was read.
    """

    def __init__(self, events: Iterable[tuple[Cursor, Task]], cursor: Cursor, after: Cursor) -> None:
        super().__init__(events, cursor)
        self.after = after


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The state of one partition of a consumer group.

    The group divides the topic into `partitions` by `level`, or by a function of version `resolver`; a group that only
    stores progress has no division. `member` is the owner that holds the partition. `lapsed` is True if its lease has
    lapsed, so that another one may take over. `cursor` is the progress, of the time `advanced`. `behind` counts the
    tasks of the topic after it, and `behind_since` is when the first of them was pushed. `failed` is when a consumer
    gave up with `error`, if the group has made no progress since.
    """

    group: str
    topic: str
    partitions: int | None
    level: int | None
    resolver: str | None
    partition: int
    member: str | None
    fence: int | None
    lease_until: datetime | None
    lapsed: bool
    cursor: Cursor
    advanced: datetime | None
    behind: int
    behind_since: datetime | None
    failed: datetime | None
    error: str | None


@dataclass(frozen=True, slots=True)
class SkippedEvent:
    """A task that a group has skipped after its last retry, with the error."""

    sequence: int
    identifier: str
    skipped: datetime
    error: str


def sequence_id(identifier: str, level: int | None = None, sequence: int | None = None) -> str:
    """Return the text that decides on a task's partition. Tasks with the same text stay in order.

    An identifier such as `prefix/a/b/c` has the levels a, b and c. The text before the first slash is no level.

    :param level: how much of the identifier counts. None: the whole identifier. n: its first n levels, or the whole
        identifier if it has no slash. 0: nothing, but the task's own sequence, so that tasks spread evenly.
    :param sequence: the task's sequence, for level 0.
    :raises InvalidArgument: for a negative level, or level 0 without a sequence.
    """
    if level is None:
        return identifier
    if to_integer(level, "level") < 0 or (level == 0 and sequence is None):
        raise InvalidArgument(
            f"invalid level {level} with sequence {sequence}: 0 is the task's own sequence, n its first n levels"
        )
    if level == 0:
        return str(sequence)
    _, slash, levels = identifier.partition("/")
    return "/" + "/".join(levels.split("/")[:level]) if slash else identifier


def partition_of(identifier: str, partitions: int, level: int | None = None, sequence: int | None = None) -> int:
    """Return the partition of a task: the CRC-32 of its `sequence_id`, modulo `partitions`.

    :raises InvalidArgument: for less than one partition, a negative level, or level 0 without a sequence.
    """
    to_integer(partitions, "number of partitions", 1)
    return zlib.crc32(sequence_id(identifier, level, sequence).encode()) % partitions


class LogMixin(FunctionCaller):
    """Verbs that read a topic in order, any number of times, without claiming tasks."""

    def events(
        self,
        topic: str,
        after: Cursor | None,
        size: int = 1000,
        *,
        partition: int = 0,
        partitions: int = 1,
        level: int | None = None,
    ) -> Events:
        """Return the next tasks of a topic's log, in order.

        No committed task is ever skipped: while a transaction that pushed to this topic is open, the log ends before
        its first task. Tasks come as they were pushed, whatever their state is now, until they are deleted or purged.
        An empty list means that there are no further tasks yet; its `cursor` says how far the log was read.

        The transaction must be READ COMMITTED.

        :param after: the place to continue from; None for the beginning.
        :param size: the most tasks.
        :param partition: the partition to read, of `partitions` by `level`; see `partition_of`.
        :raises TaskQueueError: for a place that this database has not reached, as after a restore from a backup.
        """
        begin = after or Cursor(0)
        rows = self._rows(
            "SELECT * FROM taskq.events(%s::text, %s::bigint, %s::int, %s::int, %s::int, %s::int)",
            (topic, begin.place, size, partition, partitions, level),
        )
        return Events(_events(topic, rows), Cursor(rows[-1][0]) if rows else begin)

    def progress(self, group: str, topic: str, partition: int = 0) -> Cursor | None:
        """Return how far a consumer group has handled a partition; None if it has stored no progress."""
        place = self._value("SELECT taskq.progress(%s::text, %s::text, %s::int)", (group, topic, partition))
        return None if place is None else Cursor(place)

    def advance(self, group: str, topic: str, partition: int, cursor: Cursor) -> None:
        """Store how far a consumer group has handled a partition. Call this method in the transaction of the handler.

        An earlier place than before is stored as well, which replays the tasks after it, also the skipped ones.
        """
        self._rows(
            "SELECT taskq.advance(%s::text, %s::text, %s::int, %s::bigint)", (group, topic, partition, cursor.place)
        )

    def acquire_partition(
        self,
        group: str,
        topic: str,
        owner: Owner,
        partitions: int = 1,
        level: int | None = None,
        *,
        resolver: str | None = None,
        except_: Sequence[int] = (),
    ) -> PartitionLease | None:
        """Acquire a partition that has no consumer, or whose consumer's lease has lapsed. Wait for no consumer.

        The owner holds the partition as long as it renews its lease by `heartbeat`. The first call creates the group. A
        call with another division of the topic changes the division. No task is skipped and none is read again.

        :param owner: the registration of one running program.
        :param partitions: the number of partitions of the group.
        :param level: maps tasks to partitions as `sequence_id` does.
        :param resolver: the version of a function by which the programs of the group map tasks to partitions; with it,
            a consumer reads the tasks of all partitions. None if `level` decides.
        :param except_: partitions to leave out.
        :return: None if there is no such partition.
        :raises InvalidState: if the group has another division, and a consumer holds a partition, or the partitions of
            a `resolver` are at different places.
        :raises LeaseLost: if the lease of the owner is gone.
        """
        found = self._rows(
            "SELECT partition, fence FROM taskq.acquire_partition(%s::text, %s::bigint, %s::text, %s::text, %s::int,"
            " %s::int, %s::text, %b::int[])",
            (owner.name, owner.fence, group, topic, partitions, level, resolver, list(except_)),
        )
        return PartitionLease(group, topic, *found[0]) if found else None

    def read_partition(self, lease: PartitionLease, size: int = 100) -> PartitionBatch:
        """Return the next tasks of a leased partition after its progress. Call this method in a transaction of its own.

        :param size: the most tasks, at least 1.
        :raises LeaseLost: if another consumer has the partition.
        """
        rows = self._rows(
            "SELECT place, identifier, payload, reference, after"
            " FROM taskq.read_partition(%s::text, %s::text, %s::int, %s::bigint, %s::int)",
            (lease.group, lease.topic, lease.partition, lease.fence, size),
        )
        place, _, _, _, after = rows[-1]
        return PartitionBatch(_events(lease.topic, rows), Cursor(place), Cursor(after))

    def advance_partition(
        self, lease: PartitionLease, after: Cursor, cursor: Cursor, error: BaseException | str | None = None
    ) -> bool:
        """Move progress from one place to another. Call this method last in the transaction that has the effects.

        :param error: why the task at `cursor` is skipped; `skipped_events` returns it.
        :return: False, and nothing stored, if progress was moved in the meantime.
        :raises LeaseLost: if another consumer has the partition.
        """
        return self._flag(
            "SELECT taskq.advance_partition(%s::text, %s::text, %s::int, %s::bigint, %s::bigint, %s::bigint, %s::text)",
            (lease.group, lease.topic, lease.partition, lease.fence, after.place, cursor.place, trace_text(error)),
        )

    def release_partition(self, lease: PartitionLease, error: BaseException | str | None = None) -> bool:
        """Give a partition back. Return False if the lease was lost before.

        :param error: why the consumer gives up; `partition_states` returns it. None for a normal release.
        """
        return self._flag(
            "SELECT taskq.release_partition(%s::text, %s::text, %s::int, %s::bigint, %s::text)",
            (lease.group, lease.topic, lease.partition, lease.fence, trace_text(error)),
        )

    def partition_states(self, topic: str | None = None, size: int = 10_000, cap: int = 1000) -> list[PartitionState]:
        """Return the state of the partitions of all consumer groups, of a topic or of all topics.

        :param size: the most partitions.
        :param cap: where the counts of the tasks that follow stop.
        """
        return self._fetch(
            model_row(PartitionState, cursor=Cursor),
            'SELECT group_name AS "group", topic, partitions, level, resolver, partition, member, fence, lease_until,'
            " lapsed, cursor, advanced, behind, behind_since, failed, error"
            " FROM taskq.partition_states(%s::text, %s::int, %s::int)",
            (topic, size, cap),
        )

    def forget_group(self, group: str, topic: str) -> bool:
        """Remove a consumer group of a topic with its progress. Return False if there is no such group.

        :raises InvalidState: if a consumer holds a partition.
        """
        return self._flag("SELECT taskq.forget_group(%s::text, %s::text)", (group, topic))

    def skipped_events(self, group: str, topic: str, size: int = 100) -> list[SkippedEvent]:
        """Return up to `size` tasks that a group has skipped after the last retry, in order."""
        call = "SELECT * FROM taskq.skipped_events(%s::text, %s::text, %s::int)"
        return self._fetch(model_row(SkippedEvent), call, (group, topic, size))


def _events(topic: str, rows: Iterable[Sequence[Any]]) -> list[tuple[Cursor, Task]]:
    # Rows of (place, identifier, payload, reference, ...). The last row may have a place and no task.
    return [
        (Cursor(row[0]), Task(row[0], topic, row[1], row[2], row[3], 0, False)) for row in rows if row[1] is not None
    ]
