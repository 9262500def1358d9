"""Groups of readers, and who leads which partition (sql/functions/reader.sql)."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow_provider_taskq.queue.bounds import int_size
from airflow_provider_taskq.queue.encoding import interval_text
from airflow_provider_taskq.queue.log import Cursor
from airflow_provider_taskq.queue.models import Task
from airflow_provider_taskq.queue.reading import Handed, Led, ReaderState, Sharing
from airflow_provider_taskq.queue.tracebacks import trace_text
from airflow_provider_taskq.queue.verbs.call import Caller


class ReaderVerbs(Caller):
    """How a log is handled by groups of readers, each partition led by one at a time."""

    def join_readers(self, group: str, topic: str, partitions: int = 1, level: int | None = None) -> Sharing:
        """Enters a group, or asks for another number of partitions or level; whoever asks last has the say.

        Returns how the topic is shared out now: where that is to change, the partitions first read up to a common
        place, so that each task is in one partition of one generation.
        """
        call = "SELECT * FROM taskq.join_readers(%s::text, %s::text, %s::int, %s::int)"
        return Sharing(*self._rows(call, (group, topic, partitions, level))[0])

    def lead(self, group: str, topic: str, leader: str, lease: timedelta, except_: Sequence[int] = ()) -> Led | None:
        """Takes the lead of a partition that nobody leads, or whose leader's lease has lapsed.

        None where there is none. `leader` names one program while it runs: no other may use the name. Never waits.
        `lease`: more than 0 and at most 3650 days; else InvalidArgument.
        """
        rows = self._rows(
            "SELECT * FROM taskq.lead(%s::text, %s::text, %s::text, %s::interval, %b::int[])",
            (group, topic, leader, interval_text(lease), list(except_)),
        )
        return Led(group, topic, *rows[0]) if rows else None

    def keep_leading(self, group: str, topic: str, leader: str) -> set[int]:
        """Extends the leases of all partitions that this leader leads, and returns their fences."""
        call = "SELECT * FROM taskq.keep_leading(%s::text, %s::text, %s::text)"
        return {fence for (fence,) in self._rows(call, (group, topic, leader))}

    def read_led(self, led: Led, size: int = 100) -> Handed:
        """The next tasks of a partition, from where its progress is; LeaseLost where somebody else leads it.

        Where there are none, that is stored as progress. Best in a transaction of its own. InvalidArgument for a
        `size` below 1.
        """
        rows = self._rows(
            "SELECT * FROM taskq.read_led(%s::text, %s::text, %s::int, %s::bigint, %s::int)",
            (led.group, led.topic, led.partition, led.fence, int_size(size)),
        )
        place, _, _, _, after, at_end = rows[-1]
        found = [
            (Cursor(row[0]), Task(row[0], led.topic, row[1], row[2], row[3], 0, False))
            for row in rows
            if row[1] is not None
        ]
        return Handed(found, Cursor(place), Cursor(after), at_end=at_end)

    def advance_led(self, led: Led, after: Cursor, cursor: Cursor) -> bool:
        """Stores progress from one place to another: last in the transaction that has the effects, best.

        False, and nothing stored, where somebody has put progress elsewhere since. LeaseLost where somebody else leads.
        """
        return bool(
            self._value(
                "SELECT taskq.advance_led(%s::text, %s::text, %s::int, %s::bigint, %s::bigint, %s::bigint)",
                (led.group, led.topic, led.partition, led.fence, after.place, cursor.place),
            )
        )

    def stop_leading(self, led: Led, error: BaseException | str | None = None) -> bool:
        """Gives the lead of a partition back, with the error if one is why; False where it was led no longer."""
        return bool(
            self._value(
                "SELECT taskq.stop_leading(%s::text, %s::text, %s::int, %s::bigint, %s::text)",
                (led.group, led.topic, led.partition, led.fence, trace_text(error)),
            )
        )

    def readers(self, topic: str | None = None) -> list[ReaderState]:
        """Every partition of every group of readers: who leads it, and how far it is."""
        return [_state_of(row) for row in self._rows("SELECT * FROM taskq.readers(%s::text)", (topic,))]

    def forget_readers(self, group: str, topic: str) -> bool:
        """Forgets a group of readers of a topic, with its progress; False where there is none."""
        return bool(self._value("SELECT taskq.forget_readers(%s::text, %s::text)", (group, topic)))


def _state_of(row: Sequence[Any]) -> ReaderState:
    """The state of a partition from a row of taskq.readers."""
    values = list(row)
    values[10] = Cursor(values[10])
    values[11] = None if values[11] is None else Cursor(values[11])
    return ReaderState(*values)
