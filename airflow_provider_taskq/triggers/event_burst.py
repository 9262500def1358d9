"""When the events of a stream are fired, so that Airflow leaves none of them behind."""

from collections.abc import Sequence

from airflow_provider_taskq.triggers.async_owner import Claim


class Burst:
    """Decides which claims are fired now, and which one is held back to start a run with the events before it.

    Airflow 3.3 starts a run with the events up to the first that came since the run before. Those that came between
    that one and the start of the run wait for the next event. So within `cooldown` seconds of a settled event the last
    claim is held back: it is fired when another follows, or when the time is over. Times are of one clock, in seconds.
    """

    def __init__(self, cooldown: float, closing_events: int) -> None:
        self._cooldown = cooldown
        self._closing_events = closing_events
        self._held: Claim | None = None
        self._unsettled = 0  # claims that were fired and have not come back
        self._quiet_at = 0.0  # when the last settled event is so old that the next one starts a run of its own
        self._left = False  # whether an event was fired that may wait for another
        self._closings = 0
        self._closing_at: float | None = None

    @property
    def due_at(self) -> float | None:
        """When `due` may have something to fire; None where that takes another event."""
        if self._unsettled:
            return None
        if self._held is not None or self._left:
            return self._quiet_at
        return None if self._closing_at is None else max(self._closing_at, self._quiet_at)

    def started(self, now: float) -> None:
        """A triggerer has taken the stream over; the one before may have left events behind its last closing one."""
        self._held, self._unsettled, self._left = None, 0, False
        self._await_closings(now)

    def fired(self, claims: Sequence[Claim], now: float) -> list[Claim]:
        """The claims that are to be fired now, one that was held back first."""
        ready = [*([self._held] if self._held is not None else []), *claims]
        self._held = None
        if self._cooldown > 0 and ready and (len(ready) > 1 or self._is_open(now)):
            self._held = ready.pop()
        return [self._fire(claim, now) for claim in ready]

    def due(self, now: float, topic: str) -> list[Claim]:
        """What is fired because nothing else came: the claim that was held back, else an event without tasks."""
        if self._is_open(now):
            return []
        if self._held is not None:
            held, self._held = self._held, None
            return [self._fire(held, now)]
        closing = self._closing_at is not None and now >= self._closing_at
        if not closing and not self._left:
            return []
        if closing:
            self._closings += 1
            more = self._closings < self._closing_events
            self._closing_at = now + self._cooldown * 2.0**self._closings if more else None
        return [self._fire(Claim(topic, (), ()), now)]

    def settled(self, claim: Claim, now: float) -> None:
        """A claim has come back: from now on Airflow may have its event."""
        self._unsettled = max(self._unsettled - 1, 0)
        if claim.fired:
            self._quiet_at = now + self._cooldown
            self._left = not claim.starts_run
        if claim.sequences:
            self._await_closings(now)

    def _fire(self, claim: Claim, now: float) -> Claim:
        """Notes that a claim is fired now."""
        claim.starts_run = not self._is_open(now)
        self._unsettled += 1
        return claim

    def _is_open(self, now: float) -> bool:
        """Whether an event that is fired now may be left behind."""
        return self._cooldown > 0 and (self._unsettled > 0 or now < self._quiet_at)

    def _await_closings(self, now: float) -> None:
        """Events without tasks follow from now on, if they are wanted."""
        self._closings = 0
        self._closing_at = now + self._cooldown if self._closing_events else None
