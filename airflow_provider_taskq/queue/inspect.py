"""Browsing, for pages (sql/functions/browse.sql, browse_tasks.sql): what costs the same however much there is."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from airflow_provider_taskq.queue.bounds import int_size
from airflow_provider_taskq.queue.models import State
from airflow_provider_taskq.queue.reports import (
    Dependency,
    Found,
    Holder,
    LockLine,
    LogHolder,
    OwnerLine,
    ReaderLine,
    TaskFilter,
    TaskLine,
    Texts,
    TickLine,
    TopicGlance,
)
from airflow_provider_taskq.queue.schedule_words import schedule_in_words
from airflow_provider_taskq.queue.verbs.call import Caller

BUDGET = 10_000  # rows that are looked at for one page


class BrowseVerbs(Caller):
    """What a page shows: pages of bounded cost, counts with caps, and what was not looked at is said."""

    def now(self) -> datetime:
        """The database's clock."""
        moment: datetime = self._value("SELECT clock_timestamp()")
        return moment

    def browse_topics(
        self, search: str | None = None, *, after: str | None = None, size: int = 25, cap: int = 1000
    ) -> list[TopicGlance]:
        """Topics whose name contains a text, after a name, in alphabetical order."""
        return self._topics(search, False, after, size, cap)

    def browse_topic(self, topic: str, cap: int = 10_000) -> TopicGlance | None:
        """One topic; None where there is none of that name."""
        found = self._topics(topic, True, None, 1, cap)
        return found[0] if found else None

    def browse_tasks(self, topic: str, sequences: Sequence[int], error_length: int = 0) -> list[TaskLine]:
        """Tasks as a page lists them, in the order given; sequences without a task are left out.

        Each has the summary of its error, and with `error_length` that many characters of the traceback.
        """
        rows = self._rows(
            "SELECT * FROM taskq.browse_tasks(%s::text, %b::bigint[], %s::int)",
            (topic, list(sequences), int_size(error_length)),
        )
        lines = {row[0]: _task_line(row) for row in rows}
        return [lines[sequence] for sequence in sequences if sequence in lines]

    def find_tasks(
        self,
        topic: str,
        given: TaskFilter,
        *,
        after: int | None = None,
        newest: bool = True,
        size: int = 50,
        budget: int = BUDGET,
    ) -> Found:
        """The tasks that a filter finds beyond `after`, the newest or the oldest first; looks at `budget` rows."""
        rows = self._rows(
            "SELECT hits, looked_to FROM taskq.find_tasks(%s::text, %s::int, %s::text, %s::text, %s::text,"
            " %s::timestamptz, %s::timestamptz, %s::text, %s::text, %s::bigint, %s::boolean, %s::int, %s::int)",
            (
                *(topic, given.state, given.status, given.identifier, given.reference, given.since, given.until),
                *(given.error, given.error_group, after, newest, int_size(size), int_size(budget)),
            ),
        )
        return Found(*rows[0])

    def search_tasks(self, text: str, size: int = 50) -> list[TaskLine]:
        """Tasks of all topics whose sequence, identifier or reference is a text as a whole, the newest first."""
        return self._lines(
            self._rows("SELECT * FROM taskq.search_tasks(%s::text, %s::int)", (text, int_size(size))), newest=True
        )

    def pushed_between(self, topic: str, first: int, last: int, size: int = 50) -> list[int]:
        """The tasks of one push, by its first and last sequence: those of that transaction only."""
        found: list[int] = self._value(
            "SELECT taskq.pushed_between(%s::text, %s::bigint, %s::bigint, %s::int)",
            (topic, first, last, int_size(size)),
        )
        return found

    def claimed_by(
        self, topic: str, owner: str, since: datetime | None = None, budget: int = BUDGET
    ) -> list[tuple[int, State]]:
        """Sequences and states of tasks that an owner holds, or that ended under it since a moment.

        Looks at the newest `budget` tasks of the topic that have ended.
        """
        rows = self._rows(
            "SELECT * FROM taskq.claimed_by(%s::text, %s::text, %s::timestamptz, %s::int)",
            (topic, owner, since, int_size(budget)),
        )
        return [(sequence, State(state)) for sequence, state in rows]

    def newest_of(self, topic: str, identifiers: Sequence[str]) -> dict[str, int | None]:
        """The sequence of the newest task of each identifier."""
        return dict(self._rows("SELECT * FROM taskq.newest_of(%s::text, %b::text[])", (topic, list(identifiers))))

    def dependencies(self, topic: str, sequence: int) -> list[Dependency]:
        """What a task depends on; the first fifty."""
        rows = self._rows("SELECT * FROM taskq.dependencies_of(%s::text, %s::bigint)", (topic, sequence))
        return [Dependency(*row) for row in rows]

    def texts(self, topic: str, sequence: int, length: int) -> Texts | None:
        """A task's payload and output, cut to so many characters; None where there is no such task."""
        rows = self._rows(
            "SELECT * FROM taskq.texts_of(%s::text, %s::bigint, %s::int)", (topic, sequence, int_size(length))
        )
        return Texts(*rows[0]) if rows else None

    def browse_owners(
        self, search: str | None = None, *, after: int | None = None, size: int = 50, budget: int = BUDGET
    ) -> tuple[list[OwnerLine], int | None]:
        """Owners whose lease is not gone, the newest registration first, before a fence.

        With the fence to go on from where it stopped looking before it had found `size`; None where nothing is beyond.
        """
        rows = self._owners(search, False, after, size, budget)
        lines = [OwnerLine(*row) for row in rows if row[0] is not None]
        return lines, next((row[1] for row in rows if row[0] is None), None)

    def browse_owner(self, name: str) -> OwnerLine | None:
        """One owner, its lease gone or not; None where nobody is known by that name."""
        rows = self._owners(name, True, None, 1, 1)
        return OwnerLine(*rows[0]) if rows else None

    def browse_held(
        self, owner: str, after: int | None = None, size: int = 50, *, workers: bool = False
    ) -> list[TaskLine]:
        """What an owner holds, in order of sequence, of all topics.

        `workers`: also what is held by the owners of workers of that name.
        """
        pairs = self._rows(
            "SELECT * FROM taskq.browse_held(%s::text, %s::boolean, %s::bigint, %s::int)",
            (owner, workers, after, int_size(size)),
        )
        return self._lines(pairs)

    def browse_holders(self, topic: str) -> list[Holder]:
        """Who holds tasks of a topic, those with most first; at most a hundred."""
        return [Holder(*row) for row in self._rows("SELECT * FROM taskq.browse_holders(%s::text)", (topic,))]

    def browse_locks(self, after: str | None = None, size: int = 100) -> list[LockLine]:
        """Locks that are held, or nobody's until a time, after a name, in order."""
        return [
            LockLine(*row)
            for row in self._rows("SELECT * FROM taskq.browse_locks(%s::text, %s::int)", (after, int_size(size)))
        ]

    def browse_readers(self, size: int = 100, cap: int = 1000) -> list[ReaderLine]:
        """How far groups of readers got."""
        rows = self._rows("SELECT * FROM taskq.browse_readers(%s::int, %s::int)", (int_size(size), int_size(cap)))
        return [ReaderLine(*row) for row in rows]

    def log_holders(self, topic: str) -> list[LogHolder]:
        """The open transactions that hold a topic's log back: readers get nothing from their `floor` on."""
        return [LogHolder(*row) for row in self._rows("SELECT * FROM taskq.log_holders(%s::text)", (topic,))]

    def browse_ticks(self, topic: str, steps: int = 1000) -> tuple[list[TickLine], bool]:
        """Ticks of a topic that wait, by prefix and hash, and whether there may be more than were looked at."""
        rows = self._rows("SELECT * FROM taskq.browse_ticks(%s::text, %s::int)", (topic, int_size(steps)))
        return [_tick_line(row) for row in rows if row[0] is not None], any(row[5] for row in rows)

    def _lines(self, pairs: Sequence[tuple[str, int]], *, newest: bool = False) -> list[TaskLine]:
        """Tasks of several topics in order of sequence."""
        of_topic: dict[str, list[int]] = {}
        for topic, sequence in pairs:
            of_topic.setdefault(topic, []).append(sequence)
        lines = [line for topic, sequences in of_topic.items() for line in self.browse_tasks(topic, sequences)]
        return sorted(lines, key=lambda line: line.sequence, reverse=newest)

    def _topics(self, search: str | None, exact: bool, after: str | None, size: int, cap: int) -> list[TopicGlance]:
        rows = self._rows(
            "SELECT * FROM taskq.browse_topics(%s::text, %s::boolean, %s::text, %s::int, %s::int)",
            (search, exact, after, int_size(size), int_size(cap)),
        )
        return [TopicGlance(*row) for row in rows]

    def _owners(
        self, search: str | None, exact: bool, after: int | None, size: int, budget: int
    ) -> list[tuple[Any, ...]]:
        return self._rows(
            "SELECT * FROM taskq.browse_owners(%s::text, %s::boolean, %s::bigint, %s::int, %s::int)",
            (search, exact, after, int_size(size), int_size(budget)),
        )


def _task_line(row: Sequence[Any]) -> TaskLine:
    """A task from a row, with its states as such."""
    values = list(row)
    values[4] = State(values[4])
    values[5] = None if values[5] is None else State(values[5])
    return TaskLine(*values)


def _tick_line(row: Sequence[Any]) -> TickLine:
    """Ticks from a row, with their schedule in words."""
    prefix, config_hash, waiting, following, last, _, moments = row
    return TickLine(prefix, config_hash, waiting, following, last, schedule_in_words(moments))
