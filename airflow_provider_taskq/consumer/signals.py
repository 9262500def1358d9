"""Ends by SIGTERM and SIGINT, as service managers and people ask for it."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ASKED = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Calls `stop` for the signals that ask a program to end; in the main thread only, as Python has it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def asked(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - what Python calls it with
        stop()

    before = {number: signal.signal(number, asked) for number in ASKED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
