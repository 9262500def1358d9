"""Inspection: tasks, searches, history, statistics, and health."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_taskq.queue.connection import FunctionCaller
from airflow_provider_taskq.queue.encoding import interval_text, state_number, task_info_of, to_int4
from airflow_provider_taskq.queue.errors import InvalidTask
from airflow_provider_taskq.queue.models import Count, Result, State, TaskInfo
from airflow_provider_taskq.queue.reports import (
    ConsumerLag,
    Dependency,
    DurationStats,
    ErrorGroup,
    HandlingTimes,
    HealthFinding,
    HistoryEvent,
    LockSummary,
    LogBlocker,
    OwnerSummary,
    SearchPage,
    Severity,
    StuckOwner,
    TaskFilter,
    TaskSummary,
    TaskTexts,
    Throughput,
    TickSummary,
    TopicErrors,
    TopicHolder,
    TopicStatistics,
    TopicSummary,
)
from airflow_provider_taskq.queue.schedules import describe_schedule

BUDGET = 10_000  # rows that are looked at for one page
HOUR = timedelta(hours=1)
NONE = timedelta(0)
PATIENCE = timedelta(minutes=5)


class InspectMixin(FunctionCaller):
    """Verbs that read and change nothing. Their costs are bounded."""

    def now(self) -> datetime:
        """The database's clock."""
        moment: datetime = self._value("SELECT clock_timestamp()")
        return moment

    def browse_topics(
        self, search: str | None = None, *, after: str | None = None, size: int = 25, cap: int = 1000
    ) -> list[TopicSummary]:
        """Topics whose name contains a text, after a name, in alphabetical order."""
        return self._topics(search, False, after, size, cap)

    def browse_topic(self, topic: str, cap: int = 10_000) -> TopicSummary | None:
        """One topic; None where there is none of that name."""
        found = self._topics(topic, True, None, 1, cap)
        return found[0] if found else None

    def browse_tasks(self, topic: str, sequences: Sequence[int], error_length: int = 0) -> list[TaskSummary]:
        """Tasks as a page lists them, in the order given; sequences without a task are left out.

        Each has the summary of its error, and with `error_length` that many characters of the traceback.
        """
        rows = self._rows(
            "SELECT * FROM taskq.browse_tasks(%s::text, %b::bigint[], %s::int)",
            (topic, list(sequences), to_int4(error_length)),
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
    ) -> SearchPage:
        """The tasks that a filter finds beyond `after`, the newest or the oldest first; looks at `budget` rows."""
        rows = self._rows(
            "SELECT hits, looked_to FROM taskq.find_tasks(%s::text, %s::int, %s::text, %s::text, %s::text,"
            " %s::timestamptz, %s::timestamptz, %s::text, %s::text, %s::bigint, %s::boolean, %s::int, %s::int)",
            (
                *(topic, given.state, given.status, given.identifier, given.reference, given.since, given.until),
                *(given.error, given.error_group, after, newest, to_int4(size), to_int4(budget)),
            ),
        )
        return SearchPage(*rows[0])

    def search_tasks(self, text: str, size: int = 50) -> list[TaskSummary]:
        """Tasks of all topics whose sequence, identifier or reference is a text as a whole, the newest first."""
        return self._lines(
            self._rows("SELECT * FROM taskq.search_tasks(%s::text, %s::int)", (text, to_int4(size))), newest=True
        )

    def find_pushed(self, topic: str, first: int, last: int, size: int = 50) -> list[int]:
        """The tasks of one push, by its first and last sequence: those of that transaction only."""
        found: list[int] = self._value(
            "SELECT taskq.find_pushed(%s::text, %s::bigint, %s::bigint, %s::int)",
            (topic, first, last, to_int4(size)),
        )
        return found

    def find_claimed(
        self, topic: str, owner: str, since: datetime | None = None, budget: int = BUDGET
    ) -> list[tuple[int, State]]:
        """Sequences and states of tasks that an owner holds, or that ended under it since a moment.

        Looks at the newest `budget` tasks of the topic that have ended.
        """
        rows = self._rows(
            "SELECT * FROM taskq.find_claimed(%s::text, %s::text, %s::timestamptz, %s::int)",
            (topic, owner, since, to_int4(budget)),
        )
        return [(sequence, State(state)) for sequence, state in rows]

    def newest_sequences(self, topic: str, identifiers: Sequence[str]) -> dict[str, int | None]:
        """The sequence of the newest task of each identifier."""
        return dict(
            self._rows("SELECT * FROM taskq.newest_sequences(%s::text, %b::text[])", (topic, list(identifiers)))
        )

    def dependencies(self, topic: str, sequence: int) -> list[Dependency]:
        """What a task depends on; the first fifty."""
        rows = self._rows("SELECT * FROM taskq.dependencies(%s::text, %s::bigint)", (topic, sequence))
        return [Dependency(*row) for row in rows]

    def task_texts(self, topic: str, sequence: int, length: int) -> TaskTexts | None:
        """A task's payload and output, cut to so many characters; None where there is no such task."""
        rows = self._rows(
            "SELECT * FROM taskq.task_texts(%s::text, %s::bigint, %s::int)", (topic, sequence, to_int4(length))
        )
        return TaskTexts(*rows[0]) if rows else None

    def browse_owners(
        self, search: str | None = None, *, after: int | None = None, size: int = 50, budget: int = BUDGET
    ) -> tuple[list[OwnerSummary], int | None]:
        """Owners whose lease is not gone, the newest registration first, before a fence.

        With the fence to go on from where it stopped looking before it had found `size`; None where nothing is beyond.
        """
        rows = self._owners(search, False, after, size, budget)
        lines = [OwnerSummary(*row) for row in rows if row[0] is not None]
        return lines, next((row[1] for row in rows if row[0] is None), None)

    def browse_owner(self, name: str) -> OwnerSummary | None:
        """One owner, its lease gone or not; None where nobody is known by that name."""
        rows = self._owners(name, True, None, 1, 1)
        return OwnerSummary(*rows[0]) if rows else None

    def browse_held(
        self, owner: str, after: int | None = None, size: int = 50, *, workers: bool = False
    ) -> list[TaskSummary]:
        """What an owner holds, in order of sequence, of all topics.

        `workers`: also what is held by the owners of workers of that name.
        """
        pairs = self._rows(
            "SELECT * FROM taskq.browse_held(%s::text, %s::boolean, %s::bigint, %s::int)",
            (owner, workers, after, to_int4(size)),
        )
        return self._lines(pairs)

    def browse_holders(self, topic: str) -> list[TopicHolder]:
        """Who holds tasks of a topic, those with most first; at most a hundred."""
        return [TopicHolder(*row) for row in self._rows("SELECT * FROM taskq.browse_holders(%s::text)", (topic,))]

    def browse_locks(self, after: str | None = None, size: int = 100) -> list[LockSummary]:
        """Locks that are held, or nobody's until a time, after a name, in order."""
        return [
            LockSummary(*row)
            for row in self._rows("SELECT * FROM taskq.browse_locks(%s::text, %s::int)", (after, to_int4(size)))
        ]

    def browse_groups(self, size: int = 100, cap: int = 1000) -> list[ConsumerLag]:
        """How far groups of readers got."""
        rows = self._rows("SELECT * FROM taskq.browse_groups(%s::int, %s::int)", (to_int4(size), to_int4(cap)))
        return [ConsumerLag(*row) for row in rows]

    def log_blockers(self, topic: str) -> list[LogBlocker]:
        """The open transactions that hold a topic's log back: readers get nothing from their `floor` on."""
        return [LogBlocker(*row) for row in self._rows("SELECT * FROM taskq.log_blockers(%s::text)", (topic,))]

    def browse_ticks(self, topic: str, steps: int = 1000) -> tuple[list[TickSummary], bool]:
        """Ticks of a topic that wait, by prefix and hash, and whether there may be more than were looked at."""
        rows = self._rows("SELECT * FROM taskq.browse_ticks(%s::text, %s::int)", (topic, to_int4(steps)))
        return [_tick_line(row) for row in rows if row[0] is not None], any(row[5] for row in rows)

    def _lines(self, pairs: Sequence[tuple[str, int]], *, newest: bool = False) -> list[TaskSummary]:
        """Tasks of several topics in order of sequence."""
        of_topic: dict[str, list[int]] = {}
        for topic, sequence in pairs:
            of_topic.setdefault(topic, []).append(sequence)
        lines = [line for topic, sequences in of_topic.items() for line in self.browse_tasks(topic, sequences)]
        return sorted(lines, key=lambda line: line.sequence, reverse=newest)

    def _topics(self, search: str | None, exact: bool, after: str | None, size: int, cap: int) -> list[TopicSummary]:
        rows = self._rows(
            "SELECT * FROM taskq.browse_topics(%s::text, %s::boolean, %s::text, %s::int, %s::int)",
            (search, exact, after, to_int4(size), to_int4(cap)),
        )
        return [TopicSummary(*row) for row in rows]

    def _owners(
        self, search: str | None, exact: bool, after: int | None, size: int, budget: int
    ) -> list[tuple[Any, ...]]:
        return self._rows(
            "SELECT * FROM taskq.browse_owners(%s::text, %s::boolean, %s::bigint, %s::int, %s::int)",
            (search, exact, after, to_int4(size), to_int4(budget)),
        )

    def task(self, topic: str, sequence: int) -> TaskInfo | None:
        """One task with everything about it; None where the topic has none of that sequence."""
        rows = self._rows("SELECT * FROM taskq.task(%s::text, %s::bigint)", (topic, sequence))
        return task_info_of(rows[0]) if rows else None

    def latest(self, topic: str, identifiers: Sequence[str]) -> dict[str, TaskInfo]:
        """The newest task of each of these identifiers that has any."""
        rows = self._rows("SELECT * FROM taskq.latest(%s::text, %b::text[])", (topic, list(identifiers)))
        return {task.identifier: task for task in map(task_info_of, rows)}

    def page(
        self,
        topic: str,
        *,
        after: int | None = None,
        before: int | None = None,
        size: int = 100,
        state: State | str | None = None,
        identifier: str | None = None,
        reference: str | None = None,
        from_: int | None = 0,
        to: int | None = None,
    ) -> list[TaskInfo]:
        """Returns up to `size` tasks: ascending `after` a sequence, or descending `before` one; else from the first on.

        `after` and `before` leave out the sequence itself: give the last sequence of one page to get the next page.
        `from_` and `to` include both ends and only bound the tasks: `page(topic, from_=queue.resolve(moment))` begins
        with the first task created at or after the moment. `from_=None`, which `resolve` returns if there is no such
        task, gives an empty page. `state`: a State or its name.
        """
        if after is not None and before is not None:
            raise InvalidTask("a page goes after one sequence or before one, not both")
        rows = self._rows(
            "SELECT * FROM taskq.page(%s::text, %s::bigint, %s::bigint, %s::int, %s::int, %s::text, %s::text,"
            " %s::bigint, %s::bigint)",
            (topic, after, before, to_int4(size), state_number(state), identifier, reference, from_, to),
        )
        return [task_info_of(row) for row in rows]

    def count(
        self,
        topic: str | None = None,
        *,
        recent: bool = False,
        state: State | str | None = None,
        identifier: str | None = None,
        reference: str | None = None,
        from_: int | None = 0,
        to: int | None = None,
    ) -> dict[str, dict[State, Count]]:
        """How many tasks of each topic are in each state, in a range of sequences that includes both ends.

        `recent` counts only the newest task of each identifier; the state is looked at after that choice. A
        registered topic without hits has an empty dict.
        """
        counted: dict[str, dict[State, Count]] = {}
        for name, found, number, last in self._rows(
            "SELECT * FROM taskq.count(%s::text, %s::boolean, %s::int, %s::text, %s::text, %s::bigint, %s::bigint)",
            (topic, recent, state_number(state), identifier, reference, from_, to),
        ):
            states = counted.setdefault(name, {})
            if found is not None:
                states[State(found)] = Count(number, last)
        return counted

    def count_tasks(
        self,
        topic: str | None = None,
        *,
        recent: bool = False,
        state: State | str | None = None,
        identifier: str | None = None,
        reference: str | None = None,
        from_: int | None = 0,
        to: int | None = None,
    ) -> int:
        """Returns the number of tasks of a topic, or of all topics; the arguments are those of `count`.

        UnknownTopic if there is no topic of that name.
        """
        counted = self.count(
            topic, recent=recent, state=state, identifier=identifier, reference=reference, from_=from_, to=to
        )
        if topic is not None and topic not in counted:
            self._rows("SELECT taskq.policy(%s::text)", (topic,))  # raises UnknownTopic
        return sum(found.count for states in counted.values() for found in states.values())

    def results(self, since: datetime | None = None, until: datetime | None = None) -> dict[str, dict[Result, int]]:
        """How many tasks of each topic completed with which result between two moments, both included.

        Costs what completed between them. A topic without any has an empty dict.
        """
        counted: dict[str, dict[Result, int]] = {}
        for name, result, number in self._rows(
            "SELECT * FROM taskq.results(%s::timestamptz, %s::timestamptz)", (_zoned(since), _zoned(until))
        ):
            results = counted.setdefault(name, {})
            if result is not None:
                results[Result(result)] = number
        return counted

    def resolve(self, moment: datetime, preceding: bool = False) -> int | None:
        """The first sequence, of all topics, created at or after a moment; None where there is none.

        `preceding`: the last one created at or before it. Pass the result as an end of a range:
        `from_=resolve(moment)`, or `to=resolve(moment, preceding=True) or 0`, as `to=None` means no end.
        `page(after=resolve(moment))` leaves out the first task.
        """
        found: int | None = self._value(
            "SELECT taskq.resolve(%s::timestamptz, %s::boolean)", (_zoned(moment), preceding)
        )
        return found

    def explain(self, topic: str, sequence: int) -> str | None:
        """Why a task is not running, in one sentence; None where the topic has no such task."""
        told: str | None = self._value("SELECT taskq.explain(%s::text, %s::bigint)", (topic, sequence))
        return told

    def timeline(self, topic: str, sequence: int) -> list[HistoryEvent]:
        """What happened to a task, the oldest first; nothing where the topic has no such task."""
        rows = self._rows("SELECT * FROM taskq.timeline(%s::text, %s::bigint)", (topic, sequence))
        return [HistoryEvent(row[0], row[1], None if row[2] is None else State(row[2]), *row[3:]) for row in rows]

    def throughput(self, span: timedelta, spans: int, topic: str | None = None) -> list[Throughput]:
        """How many tasks ended in each state, of each topic or of one, in each of so many spans of time up to now.

        Spans without any are left out. It costs the same however much history there is.
        """
        rows = self._rows(
            "SELECT * FROM taskq.throughput(%s::text::interval, %s::int, %s::text)", (interval_text(span), spans, topic)
        )
        return [Throughput(row[0], row[1], State(row[2]), *row[3:]) for row in rows]

    def set_actor(self, actor: str) -> None:
        """Names the person on whose behalf this transaction acts, for the history of what it does to tasks."""
        self._rows("SELECT set_config('taskq.actor', %s::text, true)", (actor,))

    def statistics(self, within: timedelta = HOUR, topic: str | None = None) -> list[TopicStatistics]:
        """What ended lately, by topic: counts, retries, and how long it took. Topics without any are left out."""
        rows = self._rows("SELECT * FROM taskq.statistics(%s::interval, %s::text)", (interval_text(within), topic))
        return [
            TopicStatistics(row[0], row[1], row[2], row[3], row[4], row[5], DurationStats(*row[6:])) for row in rows
        ]

    def record_handling_times(self, topic: str, seconds: Sequence[float]) -> None:
        """Notes for how many seconds tasks were handled, a number for each. Best in a transaction of its own."""
        self._rows(
            "SELECT taskq.record_handling_times(%s::text, %b::float8[])", (topic, [float(each) for each in seconds])
        )

    def handling_times(self, within: timedelta = HOUR, topic: str | None = None) -> list[HandlingTimes]:
        """How long tasks were handled, by topic, as was noted in the hours that `within` reaches back to.

        Percentiles are right to 5 %, the rest to the point.
        """
        rows = self._rows("SELECT * FROM taskq.handling_times(%s::interval, %s::text)", (interval_text(within), topic))
        return [HandlingTimes(row[0], row[1], DurationStats(*row[2:])) for row in rows]

    def topic_errors(self, topic: str | None = None) -> list[TopicErrors]:
        """The topics with tasks that failed and have not succeeded since, the one with the oldest first."""
        return [TopicErrors(*row) for row in self._rows("SELECT * FROM taskq.topic_errors(%s::text)", (topic,))]

    def error_groups(self, topic: str, size: int = 100, *, budget: int = 10_000) -> list[ErrorGroup]:
        """The errors of a topic's failed tasks in groups, the largest first: at most `size`.

        Looks at the newest `budget` tasks that FAILED, and as many that are to be tried again. To list or revive the
        tasks of a group, find them by `TaskFilter(state=State.FAILED, error_group=group.error)`.
        """
        call = "SELECT * FROM taskq.error_groups(%s::text, %s::int, %s::int)"
        return [ErrorGroup(*row) for row in self._rows(call, (topic, to_int4(size), to_int4(budget)))]

    def stuck_owners(self, patience: timedelta = NONE) -> list[StuckOwner]:
        """Owners that hold tasks under a lease that lapsed longer ago than `patience`, the longest first."""
        rows = self._rows("SELECT * FROM taskq.stuck_owners(%s::interval)", (interval_text(patience),))
        return [StuckOwner(*row) for row in rows]

    def health(self, patience: timedelta = PATIENCE) -> list[HealthFinding]:
        """Names what slows or threatens the queue, the worst first; each subject has a finding, also while it is fine.

        `patience`: how long a due task, or a lapsed lease, may wait without being named. Takes nothing, locks
        nothing, and costs milliseconds however many tasks there are.
        """
        rows = self._rows("SELECT * FROM taskq.health(%s::text::interval)", (interval_text(patience),))
        return [HealthFinding(Severity[severity.upper()], *rest) for severity, *rest in rows]


def _task_line(row: Sequence[Any]) -> TaskSummary:
    """A task from a row, with its states as such."""
    values = list(row)
    values[4] = State(values[4])
    values[5] = None if values[5] is None else State(values[5])
    return TaskSummary(*values)


def _tick_line(row: Sequence[Any]) -> TickSummary:
    """Ticks from a row, with their schedule in words."""
    prefix, config_hash, waiting, following, last, _, moments = row
    return TickSummary(prefix, config_hash, waiting, following, last, describe_schedule(moments))


def _zoned(value: datetime | None) -> datetime | None:
    """The moment, unless it has no time zone and would be another one on every machine."""
    if value is not None and value.utcoffset() is None:
        raise InvalidTask(f"the moment {value} has no time zone")
    return value
