"""A topic as a log: cursors, partitions, and groups of readers with their progress."""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self

from airflow_provider_taskq.queue.connection import FunctionCaller
from airflow_provider_taskq.queue.encoding import interval_text, to_int4
from airflow_provider_taskq.queue.errors import InvalidArgument, trace_text
from airflow_provider_taskq.queue.models import Task

_GREATEST = 2**63 - 1


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """A place in a topic's log: after the task that it came with.

    Opaque: keep it as its text, `str(cursor)`, and make it anew by `Cursor.parse`. Places of one topic compare.
    """

    place: int

    def __str__(self) -> str:
        return str(self.place)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The cursor of that text; InvalidArgument for any text that no cursor has."""
        if text.isascii() and text.isdecimal():
            place = int(text) if len(text) < 20 else -1
            if str(place) == text and place <= _GREATEST:
                return cls(place)
        raise InvalidArgument(f"{text!r:.50} is no cursor: it has to be the text of one that events gave")


class Events(list[tuple[Cursor, Task]]):
    """What one read of a log found: a list of tasks, each with the place after it.

    `cursor` is the place up to which the log was read, past tasks of other partitions as well. A reader that
    stores it has nothing to look at twice, even where it found nothing.
    """

    def __init__(self, found: Iterable[tuple[Cursor, Task]], cursor: Cursor) -> None:
        super().__init__(found)
        self.cursor = cursor


@dataclass(frozen=True, slots=True)
class Partitioning:
    """How a group shares a topic out: `partitions` by `level`, as `sequence_id` has it.

    `generation` counts the ways so far. `next_partitions` and `next_level` are set while the partitions read up to the
    end of this generation, so that the next may begin.
    """

    generation: int
    partitions: int
    level: int | None
    next_partitions: int | None
    next_level: int | None


@dataclass(frozen=True, slots=True)
class PartitionLease:
    """A partition that somebody leads, under a fence that only grows.

    `taken_over`: somebody else led it, whose lease lapsed.
    """

    group: str
    topic: str
    generation: int
    partitions: int
    level: int | None
    partition: int
    fence: int
    taken_over: bool


class PartitionBatch(Events):
    """The tasks that a leader was handed, each with the place after it.

    `after` is where progress is, before the first of them; `cursor` how far the log was read. `at_end`: that is the end
    of the partition's generation, and there is nothing left to lead.
    """

    def __init__(self, found: Iterable[tuple[Cursor, Task]], cursor: Cursor, after: Cursor, *, at_end: bool) -> None:
        super().__init__(found, cursor)
        self.after = after
        self.at_end = at_end


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition of a group of readers, for people to look at.

    `lapsed`: its leader's lease is, and somebody may take over. `cursor` is its progress, `ends` the place where its
    generation ends, once another is wanted. `behind_since` is when the first task was pushed that it has not passed.
    `failed` and `error` tell that a leader gave up, and nobody has made progress since.
    """

    group: str
    topic: str
    generation: int
    partitions: int
    level: int | None
    partition: int
    leader: str | None
    fence: int | None
    lease_until: datetime | None
    lapsed: bool
    cursor: Cursor
    ends: Cursor | None
    behind_since: datetime | None
    failed: datetime | None
    error: str | None


class LogMixin(FunctionCaller):
    """Verbs that read a topic as a log, alone or in groups, without taking tasks."""

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
        """The next tasks of a topic's log after a place (None: from its beginning), in order, at most `size`.

        No committed task is ever skipped: while a transaction that pushed to this topic is open, the log ends
        before its first task. Tasks come as they were pushed, whatever their state is now, until they are
        deleted or purged. With `partitions`, only those of one: see `partition_of`. An empty list says that there
        is nothing more as yet; its `cursor` says how far that was seen. Needs READ COMMITTED.
        """
        begin = after or Cursor(0)
        rows = self._rows(
            "SELECT * FROM taskq.events(%s::text, %s::bigint, %s::int, %s::int, %s::int, %s::int)",
            (topic, begin.place, to_int4(size), partition, partitions, level),
        )
        found = [
            (Cursor(row[0]), Task(row[0], topic, row[1], row[2], row[3], 0, False))
            for row in rows
            if row[1] is not None
        ]
        return Events(found, Cursor(rows[-1][0]) if rows else begin)

    def progress(self, group: str, topic: str, partition: int = 0) -> Cursor | None:
        """How far a group of readers has handled a partition of a topic; None where it has not begun."""
        place = self._value("SELECT taskq.progress(%s::text, %s::text, %s::int)", (group, topic, partition))
        return None if place is None else Cursor(place)

    def advance(self, group: str, topic: str, partition: int, cursor: Cursor) -> None:
        """Stores how far a group of readers has handled a partition: in its handler's transaction, best.

        An earlier place than before is stored as well, which replays what came after it.
        """
        self._rows(
            "SELECT taskq.advance(%s::text, %s::text, %s::int, %s::bigint)", (group, topic, partition, cursor.place)
        )

    def join_group(self, group: str, topic: str, partitions: int = 1, level: int | None = None) -> Partitioning:
        """Enters a group, or asks for another number of partitions or level; whoever asks last has the say.

        Returns how the topic is shared out now: where that is to change, the partitions first read up to a common
        place, so that each task is in one partition of one generation.
        """
        call = "SELECT * FROM taskq.join_group(%s::text, %s::text, %s::int, %s::int)"
        return Partitioning(*self._rows(call, (group, topic, partitions, level))[0])

    def acquire_partition(
        self, group: str, topic: str, leader: str, lease: timedelta, except_: Sequence[int] = ()
    ) -> PartitionLease | None:
        """Takes the lead of a partition that nobody leads, or whose leader's lease has lapsed.

        None where there is none. `leader` names one program while it runs: no other may use the name. Never waits.
        `lease`: more than 0 and at most 3650 days; else InvalidArgument.
        """
        rows = self._rows(
            "SELECT * FROM taskq.acquire_partition(%s::text, %s::text, %s::text, %s::interval, %b::int[])",
            (group, topic, leader, interval_text(lease), list(except_)),
        )
        return PartitionLease(group, topic, *rows[0]) if rows else None

    def renew_partitions(self, group: str, topic: str, leader: str) -> set[int]:
        """Extends the leases of all partitions that this leader leads, and returns their fences."""
        call = "SELECT * FROM taskq.renew_partitions(%s::text, %s::text, %s::text)"
        return {fence for (fence,) in self._rows(call, (group, topic, leader))}

    def read_partition(self, led: PartitionLease, size: int = 100) -> PartitionBatch:
        """The next tasks of a partition, from where its progress is; LeaseLost where somebody else leads it.

        Where there are none, that is stored as progress. Best in a transaction of its own. InvalidArgument for a
        `size` below 1.
        """
        rows = self._rows(
            "SELECT * FROM taskq.read_partition(%s::text, %s::text, %s::int, %s::bigint, %s::int)",
            (led.group, led.topic, led.partition, led.fence, to_int4(size)),
        )
        place, _, _, _, after, at_end = rows[-1]
        found = [
            (Cursor(row[0]), Task(row[0], led.topic, row[1], row[2], row[3], 0, False))
            for row in rows
            if row[1] is not None
        ]
        return PartitionBatch(found, Cursor(place), Cursor(after), at_end=at_end)

    def advance_partition(self, led: PartitionLease, after: Cursor, cursor: Cursor) -> bool:
        """Stores progress from one place to another: last in the transaction that has the effects, best.

        False, and nothing stored, where somebody has put progress elsewhere since. LeaseLost where somebody else leads.
        """
        return bool(
            self._value(
                "SELECT taskq.advance_partition(%s::text, %s::text, %s::int, %s::bigint, %s::bigint, %s::bigint)",
                (led.group, led.topic, led.partition, led.fence, after.place, cursor.place),
            )
        )

    def release_partition(self, led: PartitionLease, error: BaseException | str | None = None) -> bool:
        """Gives the lead of a partition back, with the error if one is why; False where it was led no longer."""
        return bool(
            self._value(
                "SELECT taskq.release_partition(%s::text, %s::text, %s::int, %s::bigint, %s::text)",
                (led.group, led.topic, led.partition, led.fence, trace_text(error)),
            )
        )

    def partition_states(self, topic: str | None = None) -> list[PartitionState]:
        """Every partition of every group of readers: who leads it, and how far it is."""
        return [_state_of(row) for row in self._rows("SELECT * FROM taskq.partition_states(%s::text)", (topic,))]

    def forget_group(self, group: str, topic: str) -> bool:
        """Forgets a group of readers of a topic, with its progress; False where there is none."""
        return bool(self._value("SELECT taskq.forget_group(%s::text, %s::text)", (group, topic)))


def sequence_id(identifier: str, level: int | None = None, sequence: int | None = None) -> str:
    """What decides on a task's partition, so that tasks which have to stay in order share it.

    By `level` None the whole identifier; n, its first n levels: what reaches from its first slash to the one
    after n levels. What stands before the first slash is no level; an identifier without any is taken whole.
    0 is the task's own sequence, so that tasks spread evenly.
    """
    if level is None:
        return identifier
    if level < 0 or (level == 0 and sequence is None):
        raise InvalidArgument(
            f"level {level} with sequence {sequence}: 0 is the task's own sequence, n its first n levels"
        )
    if level == 0:
        return str(sequence)
    _, slash, levels = identifier.partition("/")
    return "/" + "/".join(levels.split("/")[:level]) if slash else identifier


def partition_of(identifier: str, partitions: int, level: int | None = None, sequence: int | None = None) -> int:
    """The partition of a task: the CRC-32 of its sequence id, modulo `partitions`."""
    if partitions < 1:
        raise InvalidArgument(f"{partitions} partitions: there is at least one")
    return zlib.crc32(sequence_id(identifier, level, sequence).encode()) % partitions


def _state_of(row: Sequence[Any]) -> PartitionState:
    """The state of a partition from a row of taskq.partition_states."""
    values = list(row)
    values[10] = Cursor(values[10])
    values[11] = None if values[11] is None else Cursor(values[11])
    return PartitionState(*values)
