"""Reading a topic as a log, and how far readers got (sql/functions/log.sql)."""

from airflow_provider_taskq.queue.bounds import int_size
from airflow_provider_taskq.queue.log import Cursor, Events
from airflow_provider_taskq.queue.models import Task
from airflow_provider_taskq.queue.verbs.call import Caller


class LogVerbs(Caller):
    """How a topic's tasks are read in order, any number of times, without taking them."""

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
            (topic, begin.place, int_size(size), partition, partitions, level),
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
