"""Inspection: reading tasks, searches for pages, history, statistics, health. Nothing here changes or locks a task.

Reports are rows: named tuples with the columns of the SQL function of the same name, which its COMMENT describes.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import LiteralString

from airflow_provider_taskq.queue.arguments import DurationLike
from airflow_provider_taskq.queue.connection import FunctionCaller
from airflow_provider_taskq.queue.encoding import model_row, state_number
from airflow_provider_taskq.queue.errors import InvalidTask
from airflow_provider_taskq.queue.models import Count, Result, State, TaskInfo
from airflow_provider_taskq.queue.reports import (
    STATE_OF_STATUS,
    FoundTasks,
    HealthFinding,
    Row,
    Severity,
    TaskFilter,
    report_row,
)

BUDGET = 10_000  # rows that one page of a search examines

_HOUR = timedelta(hours=1)
_FIVE_MINUTES = timedelta(minutes=5)
_TOPICS: LiteralString = "browse_topics(%s::text, %s::boolean, %s::text, %s::int, %s::int)"
_OWNERS: LiteralString = "browse_owners(%s::text, %s::boolean, %s::bigint, %s::int)"
_TASK_INFO = model_row(TaskInfo)
# A task of a list: sizes instead of values, and how long the last attempt waited for its poll and ran.
_SELECT_LINE: LiteralString = (
    "SELECT t.sequence, t.topic, t.identifier, t.reference, t.state, t.descent, t.status, t.attempt, t.crashes,"
    " t.redelivered, t.priority, t.created, t.available_at, t.completed, t.owner, t.lease_until,"
    " left(t.error, nullif(%s::int, 0)) AS error, t.error_summary, octet_length(t.payload::text) AS payload_bytes,"
    " octet_length(t.output::text) AS output_bytes, CASE WHEN isfinite(t.polled)"
    " THEN greatest(t.polled - greatest(t.created, t.available_at), '0') END AS waited,"
    " CASE WHEN isfinite(t.polled) AND (t.completed IS NOT NULL OR t.state = 0)"
    " THEN greatest(coalesce(t.completed, statement_timestamp()) - t.polled, '0') END AS ran"
)
_FIND_TASKS: LiteralString = (
    "SELECT sequences, looked_to FROM taskq.find_tasks(%s::text, %s::int, %s::text, %s::text, %s::text,"
    " %s::timestamptz, %s::timestamptz, %s::text, %s::text, %s::bigint, %s::bigint, %s::boolean, %s::int, %s::int,"
    " %s::bigint, %s::bigint)"
)


class InspectMixin(FunctionCaller):
    """Verbs that only read. The cost of those named `browse_`, `find_` and `search_` is bounded on any table."""

    def now(self) -> datetime:
        """Return the time of the database's clock."""
        moment: datetime = self._value("SELECT clock_timestamp()")
        return moment

    # Tasks

    def task(self, topic: str, sequence: int) -> TaskInfo | None:
        """Return one task; None if the topic has no task of that sequence."""
        found = self._fetch(_TASK_INFO, "SELECT * FROM taskq.task(%s::text, %s::bigint)", (topic, sequence))
        return found[0] if found else None

    def latest(self, topic: str, identifiers: Sequence[str]) -> dict[str, TaskInfo]:
        """Return the newest task of each of the identifiers that has any."""
        found = self._fetch(_TASK_INFO, "SELECT * FROM taskq.latest(%s::text, %b::text[])", (topic, list(identifiers)))
        return {task.identifier: task for task in found}

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
        """Return up to `size` tasks of a topic, in ascending order of sequence unless `before` is given.

        :param after: the last sequence of the page before; the tasks after it follow in ascending order.
        :param before: the last sequence of the page before; the tasks before it follow in descending order.
        :param from_: the lowest sequence, included. `from_=queue.resolve(moment)` begins with the first task created at
            or after the moment. None, which `resolve` returns if there is no such task, gives an empty page.
        :param to: the highest sequence, included; None for no limit.
        :raises InvalidTask: for both `after` and `before`.
        """
        if after is not None and before is not None:
            raise InvalidTask("a page goes after one sequence or before one, not both")
        newest = before is not None
        filters = (state_number(state), None, identifier, reference, *[None] * 5)
        found = self._fetch(
            _TASK_INFO,
            f"SELECT t.* FROM ({_FIND_TASKS}) f, taskq.task(%s::text, VARIADIC f.sequences) t",  # noqa: S608  literals only
            (topic, *filters, before if newest else after, newest, size, None, from_, to, topic),
        )
        return sorted(found, key=lambda task: task.sequence, reverse=newest)

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
        """Count the tasks of a topic, or of all topics, by topic and state.

        :param recent: counts only the newest task of each identifier, and compares the state after that choice.
        :param from_: the lowest sequence, included.
        :param to: the highest sequence, included; None for no limit.
        :return: a topic without matching tasks has an empty dict.
        """
        counted: dict[str, dict[State, Count]] = {}
        for name, found, number, last in self._rows(
            "SELECT topic, state, count, last"
            " FROM taskq.count(%s::text, %s::boolean, %s::int, %s::text, %s::text, %s::bigint, %s::bigint)",
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
        """Return the number of tasks of a topic, or of all topics; the parameters are those of `count`.

        :raises UnknownTopic: if there is no topic of that name.
        """
        counted = self.count(
            topic, recent=recent, state=state, identifier=identifier, reference=reference, from_=from_, to=to
        )
        if topic is not None and topic not in counted:
            self._rows("SELECT taskq.policy(%s::text)", (topic,))  # raises UnknownTopic
        return sum(found.count for states in counted.values() for found in states.values())

    def results(self, since: datetime | None = None, until: datetime | None = None) -> dict[str, dict[Result, int]]:
        """Count the tasks that completed between two moments, both included, by topic and result.

        The cost grows with the number of these tasks. A topic without any has an empty dict.

        :raises InvalidTask: for a moment without a time zone.
        """
        counted: dict[str, dict[Result, int]] = {}
        for name, result, number in self._rows(
            "SELECT topic, result, count FROM taskq.results(%s::timestamptz, %s::timestamptz)",
            (_require_zone(since), _require_zone(until)),
        ):
            results = counted.setdefault(name, {})
            if result is not None:
                results[Result(result)] = number
        return counted

    def resolve(self, moment: datetime, preceding: bool = False) -> int | None:
        """Return the first sequence, of all topics, created at or after a moment; None if there is none.

        Pass the result as an end of a range: `from_=resolve(moment)`, or `to=resolve(moment, preceding=True) or 0`,
        because `to=None` means no limit. `page(after=resolve(moment))` leaves out the first task. After the
        server's clock was set back by more than ten seconds, the same times occur in two places, and the result may
        be at either.

        :param preceding: the last sequence created at or before the moment.
        :raises InvalidTask: for a moment without a time zone.
        """
        sequence: int | None = self._value(
            "SELECT taskq.resolve(%s::timestamptz, %s::boolean)", (_require_zone(moment), preceding)
        )
        return sequence

    # Searches, for pages

    def browse_topics(
        self, search: str | None = None, *, after: str | None = None, size: int = 25, cap: int = 1000
    ) -> list[Row]:
        """Return topics with counts of their tasks by status, in alphabetical order.

        :param search: a text that the names contain.
        :param after: the last name of the page before.
        :param cap: where the counts of each status stop.
        """
        return self._report(_TOPICS, search, False, after, size, cap)

    def browse_topic(self, topic: str, cap: int = 10_000) -> Row | None:
        """Return a topic with its counts; None if there is no topic of that name."""
        return next(iter(self._report(_TOPICS, topic, True, None, 1, cap)), None)

    def browse_tasks(self, topic: str, sequences: Sequence[int], error_length: int = 0) -> list[Row]:
        """Return tasks in the order of `sequences`, which may name tasks that do not exist.

        :param error_length: how many characters of the traceback each has; 0 for the summary of the error only.
        """
        found = self._lines("task(%s::text, VARIADIC %b::bigint[]) t", error_length, topic, list(sequences))
        by_sequence = {task.sequence: task for task in found}
        return [by_sequence[sequence] for sequence in sequences if sequence in by_sequence]

    def find_tasks(
        self,
        topic: str,
        given: TaskFilter,
        *,
        after: int | None = None,
        newest: bool = True,
        size: int = 50,
        budget: int = BUDGET,
    ) -> FoundTasks:
        """Return the sequences of tasks that match a filter, and where the search stopped.

        :param after: the `looked_to` of the page before.
        :param newest: whether the newest come first, or the oldest.
        :param budget: the most rows to examine. A page may have fewer than `size` tasks, and not be the last.
        """
        state = given.state if given.status is None else STATE_OF_STATUS.get(given.status)
        if given.status is not None and (state is None or given.state not in (None, state)):
            return FoundTasks([], None)
        [found] = self._rows(
            _FIND_TASKS,
            (
                *(topic, state, given.status, given.identifier, given.reference, given.since, given.until),
                *(given.error, given.error_group, given.pushed_with, after, newest, size, budget, 0, None),
            ),
        )
        return FoundTasks(*found)

    def search_tasks(self, text: str, size: int = 50) -> list[Row]:
        """Return tasks of all topics whose sequence, identifier or reference equals a text, the newest first."""
        call: LiteralString = "search_tasks(%s::text, %s::int) f, taskq.task(f.topic, f.sequence) t"
        return self._lines(f"{call} ORDER BY t.sequence DESC", 0, text, size)

    def find_claimed(self, topic: str, owner: str, since: datetime | None = None, budget: int = BUDGET) -> list[Row]:
        """Return `(sequence, state)` of tasks that an owner holds, or that ended under it since a moment.

        :param budget: how many of the topic's newest ended tasks to examine.
        """
        return self._report("find_claimed(%s::text, %s::text, %s::timestamptz, %s::int)", topic, owner, since, budget)

    def newest_sequences(self, topic: str, identifiers: Sequence[str]) -> dict[str, int]:
        """Return the sequence of the newest task of each of the identifiers that has any."""
        call = "SELECT identifier, sequence FROM taskq.latest(%s::text, %b::text[])"
        return dict(self._rows(call, (topic, list(identifiers))))

    def dependencies(self, topic: str, sequence: int) -> list[Row]:
        """Return the first fifty dependencies of a task."""
        return self._report("dependencies(%s::text, %s::bigint)", topic, sequence)

    def task_texts(self, topic: str, sequence: int, length: int) -> Row | None:
        """Return a task's payload and output as texts, cut to `length` characters; None if there is no such task.

        Do not log the row: the texts may be private.
        """
        found = self._fetch(
            report_row,
            "SELECT left(payload::text, %s::int) AS payload, octet_length(payload::text) AS payload_bytes,"
            " left(output::text, %s::int) AS output, octet_length(output::text) AS output_bytes"
            " FROM taskq.task(%s::text, %s::bigint)",
            (length, length, topic, sequence),
        )
        return found[0] if found else None

    def browse_owners(self, search: str | None = None, *, after: int | None = None, size: int = 50) -> list[Row]:
        """Return owners whose lease is not gone, the newest registration first.

        :param search: a text that the names contain.
        :param after: the last fence of the page before.
        """
        return self._report(_OWNERS, search, False, after, size)

    def browse_owner(self, name: str) -> Row | None:
        """Return one owner, also after its lease is gone; None if the name is unknown."""
        return next(iter(self._report(_OWNERS, name, True, None, 1)), None)

    def browse_held(self, owner: str, after: int | None = None, size: int = 50, *, workers: bool = False) -> list[Row]:
        """Return the tasks that an owner holds in all topics, in order of sequence.

        :param after: the last sequence of the page before.
        :param workers: also what the owners of workers of that name hold.
        """
        call: LiteralString = (
            "browse_held(%s::text, %s::boolean, %s::bigint, %s::int) f, taskq.task(f.topic, f.sequence) t"
        )
        return self._lines(f"{call} ORDER BY t.sequence", 0, owner, workers, after, size)

    def browse_holders(self, topic: str) -> list[Row]:
        """Return up to a hundred owners that hold tasks of a topic, those with most tasks first."""
        return self._report("browse_holders(%s::text)", topic)

    def browse_locks(self, after: str | None = None, size: int = 100) -> list[Row]:
        """Return locks that are held, or were given back before `at_least` was over, in order of name.

        :param after: the last name of the page before.
        """
        return self._report("browse_locks(%s::text, %s::int)", after, size)

    def log_blockers(self, topic: str) -> list[Row]:
        """Return the open transactions that hold a topic's log back.

        Consumers get no task from the `floor` of such a transaction on.
        """
        return self._report("log_blockers(%s::text)", topic)

    def browse_ticks(self, topic: str, steps: int = 1000) -> tuple[list[Row], bool]:
        """Return a topic's waiting ticks by prefix and hash, and whether there may be more.

        :param steps: the most ticks to examine.
        """
        found = self._report("browse_ticks(%s::text, %s::int)", topic, steps)
        ticks = [each for each in found if each.prefix is not None]  # a row without a prefix says that there are more
        return ticks, len(ticks) < len(found)

    def _lines(self, call: LiteralString, *arguments: object) -> list[Row]:
        return self._fetch(report_row, f"{_SELECT_LINE} FROM taskq.{call}", arguments)

    # History

    def explain(self, topic: str, sequence: int) -> Row | None:
        """Explain why a task is not running, or that the task runs or has ended.

        Return `(reason, waits_normally)`, or None if the topic has no such task.
        """
        found = self._report("explain(%s::text, %s::bigint) WHERE reason IS NOT NULL", topic, sequence)
        return found[0] if found else None

    def timeline(self, topic: str, sequence: int) -> list[Row]:
        """Return the events in the life of a task, the oldest first; none if the topic has no such task."""
        return self._report("timeline(%s::text, %s::bigint)", topic, sequence)

    # Statistics

    def throughput(self, span: DurationLike, spans: int, topic: str | None = None) -> list[Row]:
        """Count the tasks that ended in each state in each of the last `spans` spans of time, by topic.

        The result leaves out spans in which no task ended. The cost does not depend on the length of the history.
        """
        return self._report("throughput(%s::interval, %s::int, %s::text)", span, spans, topic)

    def oldest_due(self) -> dict[str, timedelta]:
        """Return for how long the oldest due task of each topic has been due, without topics that have no due task."""
        call = "SELECT topic, clock_timestamp() - since FROM taskq.oldest_due()"
        return dict(self._rows(call))

    def statistics(
        self, within: DurationLike = _HOUR, topic: str | None = None, *, run_time: bool = False
    ) -> list[Row]:
        """Return counts, retries and durations of the tasks that ended lately, of each topic that has any.

        :param run_time: whether the durations, in seconds, are those from the poll of the last attempt to its end.
            Otherwise they begin when the attempt was due: the wait for a worker and the work.
        """
        return self._report("statistics(%s::interval, %s::text, %s::boolean)", within, topic, run_time)

    def error_groups(self, topic: str, size: int = 100, *, budget: int = 10_000) -> list[Row]:
        """Return up to `size` groups of a topic's failed tasks with the same error, the largest first.

        To list or revive the tasks of a group, find them by `TaskFilter(state=State.FAILED, error_group=group.error)`.

        :param budget: how many of the newest FAILED tasks, and of the tasks that wait to be retried, to examine.
        """
        return self._report("error_groups(%s::text, %s::int, %s::int)", topic, size, budget)

    # Health

    def health(self, patience: DurationLike = _FIVE_MINUTES) -> list[HealthFinding]:
        """Return findings about what slows or threatens the queue, the worst first, and one for each healthy subject.

        The cost is milliseconds, whatever the number of tasks.

        :param patience: how long a due task, or a lapsed lease, may wait before it is a finding.
        """
        found = self._rows(
            "SELECT severity, subject, detail, value, pid, topic, sequence, owner, remedy"
            " FROM taskq.health(%s::interval)",
            (patience,),
        )
        return [HealthFinding(Severity.of(severity), *rest) for severity, *rest in found]

    def _report(self, call: LiteralString, *arguments: object) -> list[Row]:
        return self._fetch(report_row, f"SELECT * FROM taskq.{call}", arguments)  # noqa: S608  literals only


def _require_zone(moment: datetime | None) -> datetime | None:
    # A moment without a time zone would be another one on each machine.
    if moment is not None and moment.utcoffset() is None:
        raise InvalidTask(f"the moment {moment} has no time zone")
    return moment
