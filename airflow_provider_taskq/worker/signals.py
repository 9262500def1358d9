"""SIGTERM and SIGINT: the first signal stops a program, a second one stops it at once."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

CHECK_SECONDS = 0.2  # between two checks of `StopSignals.received`


class StopSignals:
    """Receives SIGTERM and SIGINT while its block runs. Does nothing outside the main thread, as Python requires.

    Each signal after the first calls `on_repeat`, in a signal handler. So `on_repeat` may only set a flag.
    """

    def __init__(self, on_repeat: Callable[[], None] = lambda: None) -> None:
        self.received = False
        self._on_repeat = on_repeat
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = {each: signal.signal(each, self._receive) for each in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._previous.items():
            signal.signal(each, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 -- the signature of signal handlers
        if self.received:
            self._on_repeat()
        self.received = True
