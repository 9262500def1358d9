"""When to look next: soon after something happened, seldom when nothing does, later and later while nothing works."""

import random

IDLE = 1.0  # seconds between two looks, once nothing has happened for a while and nobody wants them rarer
_SLOWING = 1.5
_FIRST_RETRY = 0.5
_LONGEST_BACK_OFF = 10.0
REST = 4.0  # times what a look took, so that looks take a fifth of the time at most
_BREATH = 0.05  # seconds between looks that notifications call for


class Pace:
    """Tells when the next look is due, on the clock that it is given the time of."""

    def __init__(self) -> None:
        self.due = 0.0
        self.breath_until = 0.0
        self._interval = 0.0
        self._failures = 0

    def looked(self, now: float, shortest: float, *, eventful: bool, took: float) -> None:
        """A look at everything ended now; eventful, if it answered somebody or new waits came in before it."""
        self._failures = 0
        longest = max(IDLE, shortest)
        self._interval = shortest if eventful else min(max(self._interval, shortest) * _SLOWING, longest)
        self.due = now + max(self._interval * _spread(), REST * took)
        self.breathe(now, took)

    def breathe(self, now: float, took: float) -> None:
        """A look ended now: the next one that somebody calls for leaves the server as much time as it took."""
        self.breath_until = now + max(_BREATH, took)

    def failed(self, now: float) -> None:
        """A look failed: the next one is due later, and later again."""
        wait = min(_FIRST_RETRY * 2.0**self._failures, _LONGEST_BACK_OFF)
        self._failures += 1
        self.due = now + wait * _spread()
        self.breath_until = self.due

    def hasten(self, now: float, interval: float) -> bool:
        """Somebody new wants a look within an interval; tells whether that is sooner than it was due."""
        if self._failures or now + interval >= self.due:
            return False
        self.due = now + interval
        return True


def _spread() -> float:
    """What keeps triggerers from asking in step."""
    return random.uniform(0.8, 1.2)  # noqa: S311
