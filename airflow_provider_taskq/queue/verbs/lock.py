"""Locks by name (sql/functions/lock.sql)."""

from datetime import timedelta

from airflow_provider_taskq.queue.encoding import interval_text
from airflow_provider_taskq.queue.verbs.call import Caller

NOTHING = timedelta(0)


class LockVerbs(Caller):
    """Leases by name on the database's clock: who can't get one goes on without it, and nobody waits."""

    def lock(self, name: str, by: str, at_most: timedelta, at_least: timedelta = NOTHING) -> bool:
        """Takes the lock of that name for `by`, or extends it where `by` has it; False where somebody else has it.

        It is held for `at_most` from now unless it is given back, which it is not before `at_least` from now. To
        others it is taken as soon as this returns, though the transaction is still open; so too if it is to roll back.
        `at_most`: at most 3650 days; else InvalidArgument.
        """
        return bool(
            self._value(
                "SELECT taskq.lock(%s::text, %s::text, %s::interval, %s::interval)",
                (name, by, interval_text(at_most), interval_text(at_least)),
            )
        )

    def unlock(self, name: str, by: str) -> bool:
        """Gives the lock of that name back; False where `by` does not have it, or has it no longer.

        Before `at_least` is over the lock is nobody's until then.
        """
        return bool(self._value("SELECT taskq.unlock(%s::text, %s::text)", (name, by)))
