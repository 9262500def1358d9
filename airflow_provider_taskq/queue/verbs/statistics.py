"""How many, how often again, how long (sql/functions/statistics.sql)."""

from collections.abc import Sequence
from datetime import timedelta

from airflow_provider_taskq.queue.bounds import int_size
from airflow_provider_taskq.queue.encoding import interval_text
from airflow_provider_taskq.queue.figures import Ends, ErrorGroup, Errors, HandlingTimes, Spread, StuckOwner
from airflow_provider_taskq.queue.verbs.call import Caller

HOUR = timedelta(hours=1)
NONE = timedelta(0)


class StatisticsVerbs(Caller):
    """Figures from what is stored, which change nothing; and the one verb that notes what is not stored otherwise."""

    def statistics(self, within: timedelta = HOUR, topic: str | None = None) -> list[Ends]:
        """What ended lately, by topic: counts, retries, and how long it took. Topics without any are left out."""
        rows = self._rows("SELECT * FROM taskq.statistics(%s::interval, %s::text)", (interval_text(within), topic))
        return [Ends(row[0], row[1], row[2], row[3], row[4], row[5], Spread(*row[6:])) for row in rows]

    def note_handling(self, topic: str, seconds: Sequence[float]) -> None:
        """Notes for how many seconds tasks were handled, a number for each. Best in a transaction of its own."""
        self._rows("SELECT taskq.note_handling(%s::text, %b::float8[])", (topic, [float(each) for each in seconds]))

    def handling_times(self, within: timedelta = HOUR, topic: str | None = None) -> list[HandlingTimes]:
        """How long tasks were handled, by topic, as was noted in the hours that `within` reaches back to.

        Percentiles are right to 5 %, the rest to the point.
        """
        rows = self._rows("SELECT * FROM taskq.handling_times(%s::interval, %s::text)", (interval_text(within), topic))
        return [HandlingTimes(row[0], row[1], Spread(*row[2:])) for row in rows]

    def errors(self, topic: str | None = None) -> list[Errors]:
        """The topics with tasks that failed and have not succeeded since, the one with the oldest first."""
        return [Errors(*row) for row in self._rows("SELECT * FROM taskq.errors(%s::text)", (topic,))]

    def error_groups(self, topic: str, size: int = 100, *, budget: int = 10_000) -> list[ErrorGroup]:
        """The errors of a topic's failed tasks in groups, the largest first: at most `size`.

        Looks at the newest `budget` tasks that FAILED, and as many that are to be tried again. To list or revive the
        tasks of a group, find them by `TaskFilter(state=State.FAILED, error_group=group.error)`.
        """
        call = "SELECT * FROM taskq.error_groups(%s::text, %s::int, %s::int)"
        return [ErrorGroup(*row) for row in self._rows(call, (topic, int_size(size), int_size(budget)))]

    def stuck_owners(self, patience: timedelta = NONE) -> list[StuckOwner]:
        """Owners that hold tasks under a lease that lapsed longer ago than `patience`, the longest first."""
        rows = self._rows("SELECT * FROM taskq.stuck_owners(%s::interval)", (interval_text(patience),))
        return [StuckOwner(*row) for row in rows]
