"""Pauses of the loops of a worker between polls that find nothing."""

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_IDLE_FACTOR = 4.0  # least pause after an empty poll, as a multiple of its duration


class IdleWait:
    """Pauses the threads of a worker after polls that find nothing.

    One thread polls periodically, the others sleep. `wake` lets all of them poll, as after a full batch.

    :param seconds: the least pause between two polls of the thread that polls periodically.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._changed = threading.Condition()
        self._polling = False
        self._wakes = 0
        self._ended = False

    def wakes(self) -> int:
        """Return the number of wakes so far. Read it before a poll: a wake during the poll ends the next wait."""
        return self._wakes

    def wait(self, wakes: int, took: float = 0.0, is_woken: Callable[[], bool] = lambda: False) -> None:
        """Wait for the time of the next poll: after the pause, or at once if there was a wake since `wakes`.

        :param took: seconds that the last empty poll took. A slow poll makes the pause longer, so that empty polls take
            at most a fifth of the time.
        :param is_woken: ends the wait of this thread only; called again after `wake_decided`.
        """

        def is_over() -> bool:
            return self._ended or self._wakes > wakes or is_woken()

        with self._changed:
            if self._polling:
                self._changed.wait_for(lambda: is_over() or not self._polling)
            if is_over():
                return
            self._polling = True
            self._changed.wait_for(is_over, self.seconds_after(took))
            self._polling = False
            # notify() alone might reach a thread in `sleep`, and no thread would take over the periodic polls.
            self._changed.notify_all()

    def wait_for(self, find: Callable[[], T], *, or_end: bool = False) -> T:
        """Wait until `find()` returns something true, and return it; with `or_end` return at `end`, too.

        Calls `find` under the lock of this object, again after each `wake_decided`.
        """
        with self._changed:
            while not (found := find()) and not (or_end and self._ended):
                self._changed.wait()
            return found

    def seconds_after(self, took: float) -> float:
        """Return the pause, in seconds, after an empty poll that took `took` seconds."""
        return max(self._seconds, _IDLE_FACTOR * took)

    def sleep(self, wakes: int, seconds: float, is_woken: Callable[[], bool] = lambda: False) -> None:
        """Wait `seconds`, or until a wake after `wakes`, whether or not another thread polls."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._wakes > wakes or is_woken(), seconds)

    def wake_decided(self) -> None:
        """Let the waiting threads call their `is_woken`."""
        with self._changed:
            self._changed.notify_all()

    def wake(self) -> None:
        """Let all waiting threads poll at once."""
        with self._changed:
            self._wakes += 1
            self._changed.notify_all()

    def end(self) -> None:
        """End the waits of all threads. Later waits return at once."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
