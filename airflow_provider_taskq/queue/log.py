"""Reading a topic as a log: places in it, and how its tasks are spread over partitions."""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from airflow_provider_taskq.queue.errors import InvalidArgument
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
