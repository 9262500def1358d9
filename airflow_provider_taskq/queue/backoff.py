"""Pauses between attempts that fail, longer with each failure."""

import random
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_MAX_DOUBLINGS = 60  # beyond these, 2.0 ** n would only overflow


class Backoff:
    """Counts failures in a row and computes the pause after each: doubled each time, up to a maximum, with jitter.

    A `Backoff` does not sleep, so it serves threads and coroutines:

        backoff = Backoff(initial=0.5, maximum=10)
        while not try_to_connect():
            stopped.wait(backoff.next())
        backoff.reset()

    :param initial: seconds after the first failure, before jitter.
    :param maximum: seconds that no pause exceeds. So long after the end of an outage, a program may still stand still.
    :param jitter: the share of a pause, 0 to 1, that chance may take off, so that programs do not retry in step.
    """

    def __init__(self, initial: float = 0.1, maximum: float = 5.0, *, jitter: float = 0.5) -> None:
        self.initial = initial
        self.maximum = maximum
        self.jitter = jitter
        self.failures = 0

    def next(self) -> float:
        """Count a failure, and return the seconds to pause before the next attempt."""
        pause = min(self.maximum, self.initial * 2.0 ** min(self.failures, _MAX_DOUBLINGS))
        self.failures += 1
        return pause * random.uniform(1 - self.jitter, 1)  # noqa: S311

    def reset(self) -> None:
        """Start again at `initial`. Call this method after an attempt that succeeded."""
        self.failures = 0


def retrying(
    call: Callable[[], T],
    may_retry: Callable[[Exception], bool],
    wait: Callable[[float], object],
    backoff: Backoff | None = None,
) -> T:
    """Call until the call returns, and return its value.

    :param may_retry: gets each error. If it returns False, the error is raised.
    :param wait: waits for some seconds before the next attempt. It may raise an error instead, to end the attempts.
    :param backoff: computes the pauses. A call that makes progress before it fails resets it.
    """
    backoff = backoff or Backoff()
    while True:
        try:
            return call()
        except Exception as error:
            if not may_retry(error):
                raise
        wait(backoff.next())
