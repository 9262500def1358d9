"""Limiters: they bound the batches that are handled at a time, by one worker or by several workers in one process."""

import itertools
import threading
from collections.abc import Callable
from copy import copy
from typing import Protocol

from airflow_provider_taskq.queue.arguments import to_integer

_CHECK_SECONDS = 0.1  # between two calls of `withdrawn`


class Token(Protocol):
    """The right to handle one batch, until it is committed."""

    def release(self) -> None:
        """Return the token to its limiter. A second call does nothing."""


class Limiter(Protocol):
    """Hands out tokens. An exception of `request` stops the polls of the worker."""

    def request(self, withdrawn: Callable[[], bool]) -> Token | None:
        """Wait for a token. Return None as soon as `withdrawn()` returns True."""


class PriorityLimiter:
    """Hands out up to `limit` tokens at a time, by priority, then in the order of the requests.

    Several workers can share a limiter: `shared = PriorityLimiter(4)`, then `limiter=shared.at(10)` in one worker and
    `limiter=shared.at(1)` in another. Raises ValueError if `limit` is less than 1.
    """

    def __init__(self, limit: int) -> None:
        self._limit = to_integer(limit, "limit", 1)
        self._priority = 0
        # The limiters of other priorities share these:
        self._held: set[_Token] = set()
        self._waiting: list[tuple[int, int]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()

    def at(self, priority: int) -> Limiter:
        """Return a limiter that shares these tokens and requests them at a priority. A higher priority comes first."""
        shared = copy(self)
        shared._priority = priority  # noqa: SLF001 -- of its own class
        return shared

    def request(self, withdrawn: Callable[[], bool]) -> Token | None:
        """Wait for a token. Return None when `withdrawn()` returns True."""
        place = (-self._priority, next(self._numbers))
        with self._changed:
            self._waiting.append(place)
            try:
                while len(self._held) == self._limit or min(self._waiting) != place:
                    if withdrawn():
                        return None
                    self._changed.wait(_CHECK_SECONDS)
                self._held.add(token := _Token(self._released))
                return token
            finally:
                self._waiting.remove(place)
                self._changed.notify_all()  # there may be a token for the next request

    def _released(self, token: "_Token") -> None:
        with self._changed:
            self._held.discard(token)
            self._changed.notify_all()


class _Token:
    def __init__(self, released: Callable[["_Token"], None]) -> None:
        self._released = released

    def release(self) -> None:
        self._released(self)


NO_TOKEN: Token = _Token(lambda _: None)
"""A token of no limiter."""
