"""Groups of readers as the database knows them: how a topic is shared out, who leads what, what a leader is handed."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from airflow_provider_taskq.queue.log import Cursor, Events
from airflow_provider_taskq.queue.models import Task


@dataclass(frozen=True, slots=True)
class Sharing:
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
class Led:
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


class Handed(Events):
    """The tasks that a leader was handed, each with the place after it.

    `after` is where progress is, before the first of them; `cursor` how far the log was read. `at_end`: that is the end
    of the partition's generation, and there is nothing left to lead.
    """

    def __init__(self, found: Iterable[tuple[Cursor, Task]], cursor: Cursor, after: Cursor, *, at_end: bool) -> None:
        super().__init__(found, cursor)
        self.after = after
        self.at_end = at_end


@dataclass(frozen=True, slots=True)
class ReaderState:
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
