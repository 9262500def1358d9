"""Reading tasks (sql/functions/read.sql)."""

from collections.abc import Sequence
from datetime import datetime

from airflow_provider_taskq.queue.bounds import int_size
from airflow_provider_taskq.queue.errors import InvalidTask
from airflow_provider_taskq.queue.model import Count, Result, State, TaskInfo
from airflow_provider_taskq.queue.verbs.call import Caller
from airflow_provider_taskq.queue.wire import task_info_of


class ReadVerbs(Caller):
    """What can be seen of tasks, whoever holds them."""

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
        state: State | None = None,
        identifier: str | None = None,
        reference: str | None = None,
    ) -> list[TaskInfo]:
        """Tasks beyond a sequence: ascending `after` it (from the first on by default), or descending `before` it."""
        if after is not None and before is not None:
            raise InvalidTask("a page goes after one sequence or before one, not both")
        rows = self._rows(
            "SELECT * FROM taskq.page(%s::text, %s::bigint, %s::bigint, %s::int, %s::int, %s::text, %s::text)",
            (topic, after, before, int_size(size), state, identifier, reference),
        )
        return [task_info_of(row) for row in rows]

    def count(
        self,
        topic: str | None = None,
        *,
        recent: bool = False,
        state: State | None = None,
        identifier: str | None = None,
        reference: str | None = None,
        from_: int = 0,
        to: int | None = None,
    ) -> dict[str, dict[State, Count]]:
        """How many tasks of each topic are in each state, in a range of sequences that includes both ends.

        `recent` counts only the newest task of each identifier; the state is looked at after that choice. A
        registered topic without hits has an empty dict.
        """
        counted: dict[str, dict[State, Count]] = {}
        for name, found, number, last in self._rows(
            "SELECT * FROM taskq.count(%s::text, %s::boolean, %s::int, %s::text, %s::text, %s::bigint, %s::bigint)",
            (topic, recent, state, identifier, reference, from_, to),
        ):
            states = counted.setdefault(name, {})
            if found is not None:
                states[State(found)] = Count(number, last)
        return counted

    def results(self, since: datetime | None = None, until: datetime | None = None) -> dict[str, dict[Result, int]]:
        """How many tasks of each topic completed with which result between two moments, both included.

        Costs what completed between them. A topic without any has an empty dict.
        """
        counted: dict[str, dict[Result, int]] = {}
        for name, result, number in self._rows(
            "SELECT * FROM taskq.results(%s::timestamptz, %s::timestamptz)", (_moment(since), _moment(until))
        ):
            results = counted.setdefault(name, {})
            if result is not None:
                results[Result(result)] = number
        return counted

    def resolve(self, moment: datetime, preceding: bool = False) -> int | None:
        """The first sequence, of all topics, created at or after a moment; None where there is none.

        `preceding`: the last one created at or before it.
        """
        found: int | None = self._value(
            "SELECT taskq.resolve(%s::timestamptz, %s::boolean)", (_moment(moment), preceding)
        )
        return found


def _moment(value: datetime | None) -> datetime | None:
    """The moment, unless it has no time zone and would be another one on every machine."""
    if value is not None and value.utcoffset() is None:
        raise InvalidTask(f"the moment {value} has no time zone")
    return value
