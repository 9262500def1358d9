"""Limiters: they bound the batches in flight, of one worker or of several workers in one process."""

import heapq
import itertools
import threading
from collections.abc import Callable
from typing import Protocol

_CHECK_SECONDS = 0.1  # between two calls of `withdrawn`


class Token(Protocol):
    """The right to have one batch in flight."""

    def release(self) -> None:
        """Return the token to its limiter. A second call does nothing."""


class Limiter(Protocol):
    """Hands out tokens. An exception of `request` stops the polls of the worker."""

    def request(self, withdrawn: Callable[[], bool]) -> Token | None:
        """Wait for a token. Return None as soon as `withdrawn()` returns True."""


class NoLimit:
    """Hands out any number of tokens."""

    def request(self, withdrawn: Callable[[], bool]) -> Token | None:  # noqa: ARG002 -- no request waits
        """Return a token at once."""
        return _UnlimitedToken()

    def __repr__(self) -> str:
        return "NoLimit()"


class PriorityLimiter:
    """Hands out up to `limit` tokens at a time, by priority, then in the order of the requests.

    Several workers can share a limiter: `shared = PriorityLimiter(4)`, then `limiter=shared.at(10)` in one worker and
    `limiter=shared.at(1)` in another. Raises ValueError if `limit` is less than 1.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"limit must be at least 1, not {limit}")
        self._free = limit
        self._waiting: list[tuple[int, int]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()

    def at(self, priority: int) -> Limiter:
        """Return a limiter that shares these tokens and requests them at a priority. A higher priority comes first."""
        return _LimiterAtPriority(self, priority)

    def request(self, withdrawn: Callable[[], bool]) -> Token | None:
        """Wait for a token at priority 0. Return None when `withdrawn()` returns True."""
        return self.request_at(0, withdrawn)

    def request_at(self, priority: int, withdrawn: Callable[[], bool]) -> Token | None:
        """Wait for a token at a priority. Return None when `withdrawn()` returns True."""
        place = (-priority, next(self._numbers))
        with self._changed:
            heapq.heappush(self._waiting, place)
            while not (self._free and self._waiting[0] == place):
                if withdrawn():
                    self._waiting.remove(place)
                    heapq.heapify(self._waiting)
                    self._changed.notify_all()
                    return None
                self._changed.wait(_CHECK_SECONDS)
            heapq.heappop(self._waiting)
            self._free -= 1
            self._changed.notify_all()  # there may be a token for the next request
        return _LimitedToken(self)

    def release(self) -> None:
        """Make one token available again."""
        with self._changed:
            self._free += 1
            self._changed.notify_all()


class BoundedLimiter(PriorityLimiter):
    """Hands out up to `limit` tokens at a time, in the order of the requests."""


class _LimiterAtPriority:
    def __init__(self, shared: PriorityLimiter, priority: int) -> None:
        self._shared = shared
        self._priority = priority

    def request(self, withdrawn: Callable[[], bool]) -> Token | None:
        return self._shared.request_at(self._priority, withdrawn)


class _LimitedToken:
    def __init__(self, limiter: PriorityLimiter) -> None:
        self._limiter: PriorityLimiter | None = limiter
        self._lock = threading.Lock()

    def release(self) -> None:
        with self._lock:
            limiter, self._limiter = self._limiter, None
        if limiter is not None:
            limiter.release()


class _UnlimitedToken:
    def release(self) -> None:
        pass
