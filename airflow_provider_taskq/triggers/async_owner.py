"""What the triggerer holds of a topic: a named owner's lease, and the tasks claimed under it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from airflow_provider_taskq.queue import Result
from airflow_provider_taskq.queue.encoding import interval_text
from airflow_provider_taskq.triggers.event_line import Line

NAMED = 100  # identifiers of an event, at most
_AGAIN = "5 seconds"  # a task whose event was not stored is due again then, so that a failure is no busy loop


@dataclass(slots=True, eq=False)
class Claim:
    """Claimed tasks that are one event; it travels through Airflow's shared stream and comes back to be settled."""

    topic: str
    sequences: tuple[int, ...]
    identifiers: tuple[str, ...]
    fired: int = 0
    """How many triggers have handed their event over to Airflow."""
    refusals: list[str] = field(default_factory=list)
    starts_run: bool = True
    """Whether the event was fired so long after the one before that it starts a run of its own."""

    def event(self) -> dict[str, Any]:
        """What the DAG is told: the topic, how many tasks, and of the first `NAMED` of them sequence and identifier."""
        return {
            "topic": self.topic,
            "claimed": len(self.sequences),
            "sequences": list(self.sequences),
            "identifiers": list(self.identifiers[:NAMED]),
        }


@dataclass(frozen=True, slots=True)
class Settlement:
    """How claimed tasks end: their results, with the error of those that were refused; a SUSPENSION is given back."""

    sequence: int
    result: Result
    error: str | None = None


class Holding:
    """One owner in one topic. Verbs are the queue's own, in their asynchronous form and without payloads."""

    def __init__(self, line: Line, topic: str, owner: str, lease: timedelta, order: str, condition: str) -> None:
        self._line = line
        self._topic = topic
        self._owner = owner
        self._lease = lease
        self._order = order
        self._condition = condition
        self._fence: int | None = None

    @property
    def registered(self) -> bool:
        """Whether this process has been the owner, and nobody has told it that it no longer is."""
        return self._fence is not None

    async def kept_by_another(self, within: timedelta) -> bool:
        """Whether the owner's name is in use: its lease runs, and it gave a sign of life so recently."""
        rows = await self._line.rows(
            "SELECT name FROM taskq.owners(%s::interval) WHERE name = %s::text", (interval_text(within), self._owner)
        )
        return bool(rows)

    async def register(self) -> None:
        """Becomes the owner, taking over what the name still holds; whoever used it before is locked out."""
        rows = await self._line.rows(
            "SELECT fence FROM taskq.register(%s::text, %s::interval)", (self._owner, interval_text(self._lease))
        )
        self._fence = int(rows[0][0])

    async def heartbeat(self) -> None:
        """Extends the lease; LeaseLost once it is gone."""
        await self._line.rows("SELECT taskq.heartbeat(%s::text, %s::bigint)", (self._owner, self._fence))

    async def poll(self, size: int) -> list[tuple[int, str]]:
        """Claims up to `size` tasks: their sequences and identifiers."""
        return await self._line.rows(
            "SELECT sequence, identifier FROM taskq.poll(%s::text, %s::text, %s::bigint, %s::int, %s::text, %s::text)",
            (self._topic, self._owner, self._fence, size, self._order, self._condition),
        )

    async def held(self) -> list[tuple[int, str]]:
        """What this owner holds now, in polled order; nothing once the lease is gone."""
        return await self._line.rows(
            "SELECT sequence, identifier FROM taskq.held(%s::text, %s::bigint, %s::text)",
            (self._owner, self._fence, self._topic),
        )

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        """Ends tasks, or gives them back, all or none; LeaseLost, NotHeld."""
        delays = [_AGAIN if one.result is Result.SUSPENSION else None for one in settlements]
        await self._line.rows(
            "SELECT taskq.complete(%s::text, %s::bigint, %b::bigint[], %b::smallint[], NULL, %b::text[],"
            " %b::text[]::interval[])",
            (
                self._owner,
                self._fence,
                [one.sequence for one in settlements],
                [int(one.result) for one in settlements],
                [one.error for one in settlements],
                delays if any(delays) else None,
            ),
        )

    async def unsettled(self, settlements: Collection[Settlement]) -> list[Settlement]:
        """Those that were not carried out, where nobody knows whether they were; LeaseLost."""
        await self.heartbeat()  # `held` says nothing at all once the lease is gone
        held = {sequence for sequence, _ in await self.held()}
        return [one for one in settlements if one.sequence in held]

    async def release(self, patience: float) -> int:
        """Gives back all that is held, the attempt not counted, and ends the lease."""
        rows = await self._line.rows(
            "SELECT taskq.release(%s::text, %s::bigint)", (self._owner, self._fence), patience=patience
        )
        self._fence = None
        return int(rows[0][0])
