"""What people do by a page or a command line, and its trail (sql/functions/audit.sql)."""

from collections.abc import Iterable, Sequence
from datetime import timedelta

from airflow_provider_taskq.queue.bounds import int_size
from airflow_provider_taskq.queue.encoding import interval_text
from airflow_provider_taskq.queue.models import State
from airflow_provider_taskq.queue.reports import AuditLine
from airflow_provider_taskq.queue.verbs.call import Caller


class AuditVerbs(Caller):
    """The trail of actions, and what actions on a selection need beside the other verbs."""

    def note_action(self, action: str, topic: str | None, what: str, count: int) -> None:
        """Enters what this transaction does in the trail, under the name given to `acting`; refused without one."""
        self._rows("SELECT taskq.note_action(%s::text, %s::text, %s::text, %s::bigint)", (action, topic, what, count))

    def audit_trail(self, topic: str | None = None, *, after: int | None = None, size: int = 50) -> list[AuditLine]:
        """The trail, of a topic or of all, the newest first, before a place in it."""
        rows = self._rows(
            "SELECT * FROM taskq.audit_trail(%s::text, %s::bigint, %s::int)", (topic, after, int_size(size))
        )
        return [AuditLine(*row) for row in rows]

    def hold_found(self, topic: str, sequences: Sequence[int], states: Iterable[State | str]) -> list[int]:
        """Those of these tasks that are in one of these ended states and nobody else's, locked from now on."""
        held: list[int] = self._value(
            "SELECT taskq.hold_found(%s::text, %b::bigint[], %b::int[])", (topic, list(sequences), _numbers(states))
        )
        return held

    def purge_named(self, topic: str, sequences: Sequence[int], states: Iterable[State | str]) -> int:
        """Removes those of these tasks that are in one of these states, never held ones; how many. Never waits."""
        return int(
            self._value(
                "SELECT taskq.purge_named(%s::text, %b::bigint[], %b::int[])",
                (topic, list(sequences), _numbers(states)),
            )
        )

    def count_lapsed(self, grace: timedelta) -> tuple[int, int]:
        """How many leases `expire(grace)` would take, and how many tasks under them, both up to a thousand."""
        owners, tasks = self._rows("SELECT * FROM taskq.count_lapsed(%s::interval)", (interval_text(grace),))[0]
        return owners, tasks


def _numbers(states: Iterable[State | str]) -> list[int]:
    """States as they cross the wire."""
    return [int(State.of(state)) for state in states]
