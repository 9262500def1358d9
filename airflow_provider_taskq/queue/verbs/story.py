"""What became of tasks (sql/functions/history.sql, why.sql)."""

from datetime import timedelta

from airflow_provider_taskq.queue.encoding import interval_text
from airflow_provider_taskq.queue.models import State
from airflow_provider_taskq.queue.story import Ended, Happening
from airflow_provider_taskq.queue.verbs.call import Caller


class StoryVerbs(Caller):
    """How a task came to be what it is, and why it is not something else."""

    def why(self, topic: str, sequence: int) -> str | None:
        """Why a task is not running, in one sentence; None where the topic has no such task."""
        told: str | None = self._value("SELECT taskq.why(%s::text, %s::bigint)", (topic, sequence))
        return told

    def timeline(self, topic: str, sequence: int) -> list[Happening]:
        """What happened to a task, the oldest first; nothing where the topic has no such task."""
        rows = self._rows("SELECT * FROM taskq.timeline(%s::text, %s::bigint)", (topic, sequence))
        return [Happening(row[0], row[1], None if row[2] is None else State(row[2]), *row[3:]) for row in rows]

    def throughput(self, span: timedelta, spans: int, topic: str | None = None) -> list[Ended]:
        """How many tasks ended in each state, of each topic or of one, in each of so many spans of time up to now.

        Spans without any are left out. It costs the same however much history there is.
        """
        rows = self._rows(
            "SELECT * FROM taskq.throughput(%s::text::interval, %s::int, %s::text)", (interval_text(span), spans, topic)
        )
        return [Ended(row[0], row[1], State(row[2]), *row[3:]) for row in rows]

    def acting(self, actor: str) -> None:
        """Names the person on whose behalf this transaction acts, for the history of what it does to tasks."""
        self._rows("SELECT set_config('taskq.actor', %s::text, true)", (actor,))
