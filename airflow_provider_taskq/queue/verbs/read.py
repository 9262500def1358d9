"""Reading tasks (sql/functions/read.sql)."""

from collections.abc import Sequence
from datetime import datetime

from airflow_provider_taskq.queue.bounds import int_size
from airflow_provider_taskq.queue.encoding import state_number, task_info_of
from airflow_provider_taskq.queue.errors import InvalidTask
from airflow_provider_taskq.queue.models import Count, Result, State, TaskInfo
from airflow_provider_taskq.queue.verbs.call import Caller


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
            (topic, after, before, int_size(size), state_number(state), identifier, reference, from_, to),
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
            self._rows("SELECT taskq.policy_of(%s::text)", (topic,))  # raises UnknownTopic
        return sum(found.count for states in counted.values() for found in states.values())

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

        `preceding`: the last one created at or before it. Pass the result as an end of a range:
        `from_=resolve(moment)`, or `to=resolve(moment, preceding=True) or 0`, as `to=None` means no end.
        `page(after=resolve(moment))` leaves out the first task.
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
