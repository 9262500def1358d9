"""Waiting: longer and longer while something fails, and for tasks to come while there are none."""

import random
import threading
import time


class BackOff:
    """Pauses between tries, in seconds: each up to twice the one before, none more than `most`, with jitter."""

    def __init__(self, first: float = 0.1, most: float = 30.0) -> None:
        self._first = first
        self._most = most
        self._failures = 0

    @property
    def failures(self) -> int:
        """How many there were in a row."""
        return self._failures

    def next(self) -> float:
        """The pause after one more failure: between half of what it may be and all of it."""
        self._failures += 1
        longest = min(self._most, self._first * 2.0 ** min(self._failures - 1, 60))
        return longest * random.uniform(0.5, 1)  # noqa: S311 -- so that workers do not come in step

    def reset(self) -> None:
        """Begins anew: it worked."""
        self._failures = 0


REST = 4.0  # times what a look took: a poll may take long while very many identifiers are blocked


class Pause:
    """Where the threads of a worker wait while there is nothing to do: one looks now and then, the others sleep on.

    Whoever finds more than it can take wakes the next.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._changed = threading.Condition()
        self._looking = False
        self._calls = 0
        self._over = False

    def calls(self) -> int:
        """How often somebody was called so far: to be asked before one looks, so that no call gets lost."""
        return self._calls

    def wait(self, calls: int, took: float = 0.0) -> None:
        """Returns when it is time to look again: after the pause, or where there was a call since `calls`.

        `took`: how many seconds the last look took. Looks that find nothing take a fifth of the time at most.
        """
        with self._changed:
            if self._looking:
                self._changed.wait_for(lambda: self._over or self._calls > calls or not self._looking)
            if self._over or self._calls > calls:
                return
            self._looking = True
            self._changed.wait_for(lambda: self._over or self._calls > calls, self.seconds_after(took))
            self._looking = False
            self._changed.notify_all()  # one alone may be somebody who rests, and would sleep on

    def seconds_after(self, took: float) -> float:
        """How long to pause after a look that found nothing and took `took` seconds."""
        return max(self._seconds, REST * took)

    def rest(self, calls: int, seconds: float) -> None:
        """Waits for so long, or until there was a call since `calls`, whoever else waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._calls > calls, seconds)

    def wake(self) -> None:
        """Lets those who wait look at once."""
        with self._changed:
            self._calls += 1
            self._changed.notify_all()

    def end(self) -> None:
        """Lets all go, for good."""
        with self._changed:
            self._over = True
            self._changed.notify_all()


def left(deadline: float | None) -> float | None:
    """Seconds until a moment of the monotonic clock, none below 0; None for never."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())
