"""Purge tasks and owners (sql/functions/purge.sql)."""

from datetime import timedelta

from airflow_provider_taskq.queue.encoding import interval_text, state_number
from airflow_provider_taskq.queue.models import State
from airflow_provider_taskq.queue.verbs.call import Caller


class PurgeVerbs(Caller):
    """How tasks and owners that nobody needs any more are removed for good."""

    def purge(
        self,
        topic: str,
        from_: int = 0,
        to: int | None = None,
        state: State | str | None = None,
        *,
        size: int | None = None,
    ) -> int:
        """Removes tasks from `from_` to `to`, both included, of one state; returns how many.

        Without a state, all that are FAILED to REDUNDANT: ACTIVE, READY and EXPIRED ones are spared unless named.
        `size`: at most so many, the lowest sequences first, so that a job may commit between its calls. Never waits:
        a task that another transaction holds stays.
        """
        return int(
            self._value(
                "SELECT taskq.purge(%s::text, %s::bigint, %s::bigint, %s::int, %s::bigint)",
                (topic, from_, to, state_number(state), size),
            )
        )

    def purge_all(self, topic: str) -> int:
        """Removes every task of a topic, ACTIVE ones too; returns how many.

        Never waits: a task that another transaction is polling or completing right now stays. Instant, on a
        connection in autocommit, for a topic that has partitions of its own.
        """
        return int(self._value("SELECT taskq.purge_all(%s::text, %s::boolean)", (topic, self._alone)))

    def purge_owners(self, older_than: timedelta) -> int:
        """Removes owners that gave no sign of life for so long, and whose lease has lapsed or is gone.

        Returns how many.

        Spares those that hold tasks, and those that a stored task was held by last, so that its `owner` stays known.
        """
        return int(self._value("SELECT taskq.purge_owners(%s::interval)", (interval_text(older_than),)))
