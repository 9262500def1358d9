"""Limiters: how many batches may be in flight, in one worker or in several of one process."""

import heapq
import itertools
import threading
from collections.abc import Callable
from typing import Protocol

_LOOK = 0.1  # seconds between two looks whether whoever waits has given up


class Token(Protocol):
    """The right to have one batch in flight."""

    def release(self) -> None:
        """Gives it back; again does nothing."""


class Limiter(Protocol):
    """Gives out tokens. What it raises ends the worker."""

    def request(self, given_up: Callable[[], bool]) -> Token | None:
        """A token, waited for if need be; None as soon as `given_up()` says that nobody wants it any more."""


class NoLimit:
    """As many as there are threads."""

    def request(self, given_up: Callable[[], bool]) -> Token | None:  # noqa: ARG002 -- nobody waits here
        """A token, at once."""
        return _Free()

    def __repr__(self) -> str:
        return "NoLimit()"


class PriorityLimiter:
    """So many at a time; of those who wait the highest priority first, then whoever came first.

    To be shared by workers: `shared = PriorityLimiter(4)`, then `limiter=shared.at(10)` here and `limiter=shared.at(1)`
    there.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"a limiter lets one through at least, not {limit}")
        self._free = limit
        self._waiting: list[tuple[int, int]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()

    def at(self, priority: int) -> Limiter:
        """This limiter, for those of one priority: higher first."""
        return _At(self, priority)

    def request(self, given_up: Callable[[], bool]) -> Token | None:
        """A token at priority 0."""
        return self.take(0, given_up)

    def take(self, priority: int, given_up: Callable[[], bool]) -> Token | None:
        """A token when it is one's turn."""
        place = (-priority, next(self._numbers))
        with self._changed:
            heapq.heappush(self._waiting, place)
            while not (self._free and self._waiting[0] == place):
                if given_up():
                    self._waiting.remove(place)
                    heapq.heapify(self._waiting)
                    self._changed.notify_all()
                    return None
                self._changed.wait(_LOOK)
            heapq.heappop(self._waiting)
            self._free -= 1
            self._changed.notify_all()  # there may be a token for the next, too
        return _Taken(self)

    def give_back(self) -> None:
        """One more for those who wait."""
        with self._changed:
            self._free += 1
            self._changed.notify_all()


class BoundedLimiter(PriorityLimiter):
    """So many at a time, first come, first served."""


class _At:
    """A limiter at one priority."""

    def __init__(self, shared: PriorityLimiter, priority: int) -> None:
        self._shared = shared
        self._priority = priority

    def request(self, given_up: Callable[[], bool]) -> Token | None:
        """A token when it is this priority's turn."""
        return self._shared.take(self._priority, given_up)


class _Taken:
    """A token that is given back once."""

    def __init__(self, limiter: PriorityLimiter) -> None:
        self._limiter: PriorityLimiter | None = limiter
        self._lock = threading.Lock()

    def release(self) -> None:
        """Gives it back; again does nothing."""
        with self._lock:
            limiter, self._limiter = self._limiter, None
        if limiter is not None:
            limiter.give_back()


class _Free:
    """A token of no limiter."""

    def release(self) -> None:
        """Nothing to give back."""
