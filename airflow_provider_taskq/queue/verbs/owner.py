"""Owners and their leases (sql/functions/owner.sql and lease.sql)."""

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta

from airflow_provider_taskq.queue.encoding import interval_text, owner_of, task_of
from airflow_provider_taskq.queue.models import Owner, Task
from airflow_provider_taskq.queue.verbs.call import Caller

FIVE_MINUTES = timedelta(minutes=5)
NO_GRACE = timedelta(0)


class OwnerVerbs(Caller):
    """What owners do with their leases, and what is done to leases that lapse."""

    def register(self, owner: str, lease: timedelta = FIVE_MINUTES) -> Owner:
        """Registers a name under a new, greater fence, which locks out whoever used the name before.

        Tasks that the name still holds are taken over (`resumed`): they stay ACTIVE under the new fence.
        InvalidArgument for a `lease` that is not more than 0 and at most 3650 days.
        """
        return owner_of(
            self._rows("SELECT * FROM taskq.register(%s::text, %s::interval)", (owner, interval_text(lease)))[0]
        )

    def take_over(self, owner: str, claim: int, lease: timedelta = FIVE_MINUTES) -> Owner:
        """Registers a name under a new, greater fence to continue a claim that another program made under it.

        `claim` is the fence of the registration that claimed the tasks. It stays the key to them: a retry takes
        the tasks over by the same number, which locks out the try before it, and `owner(name, claim)` finds the
        registration that holds them now. LeaseLost if the lease is gone, or the name was registered without this claim.
        InvalidArgument for a `lease` that is not more than 0 and at most 3650 days.
        """
        return owner_of(
            self._rows(
                "SELECT * FROM taskq.take_over(%s::text, %s::bigint, %s::interval)",
                (owner, claim, interval_text(lease)),
            )[0]
        )

    def heartbeat(self, owner: Owner) -> Owner:
        """Extends a lease by its length, a lapsed one too; LeaseLost once it is gone."""
        until = self._value("SELECT taskq.heartbeat(%s::text, %s::bigint)", (owner.name, owner.fence))
        return replace(owner, lease_until=until)

    def owner(self, name: str, claim: int | None = None) -> Owner | None:
        """The owner of that name whose lease is not gone, lapsed or not: how another program finds its fence.

        With `claim`, the fence of a claim, only if the owner still holds that claim: under the same fence, or under a
        later one of `take_over`.
        """
        rows = self._rows("SELECT * FROM taskq.owner_named(%s::text, %s::bigint)", (name, claim))
        return owner_of(rows[0]) if rows else None

    def owners(self, within: timedelta | None = None) -> list[Owner]:
        """The owners whose lease has not lapsed; `within`: only those that gave a sign of life so recently."""
        return [
            owner_of(row) for row in self._rows("SELECT * FROM taskq.owners(%s::interval)", (interval_text(within),))
        ]

    def release(self, owner: Owner) -> int:
        """Gives back unfinished tasks as READY in their old place, the attempt not counted, and ends the lease.

        Returns how many tasks, 0 where the lease is gone already.
        """
        return int(self._value("SELECT taskq.release(%s::text, %s::bigint)", (owner.name, owner.fence)))

    def expire(self, grace: timedelta = NO_GRACE, *, except_owners: Collection[str] = ()) -> int:
        """Takes every lease that lapsed more than `grace` ago; returns how many tasks were held under them.

        `except_owners`: names of owners whose leases are left alone, such as the caller's own.
        """
        return int(
            self._value("SELECT taskq.expire(%s::interval, %s::text[])", (interval_text(grace), list(except_owners)))
        )

    def held(self, owner: Owner, topic: str | None = None) -> list[Task]:
        """What this owner holds now, in polled order; nothing once its lease is gone."""
        rows = self._rows(
            "SELECT topic, sequence, identifier, payload, reference, attempt, redelivered"
            " FROM taskq.held(%s::text, %s::bigint, %s::text)",
            (owner.name, owner.fence, topic),
        )
        return [task_of(row[0], row[1:]) for row in rows]
