"""Signals: a program that is asked to end is asked by SIGTERM or SIGINT, and in a hurry by a second one."""

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

LOOK = 0.2  # seconds between two looks at what was told


class Signals:
    """Takes SIGTERM and SIGINT while its block runs, in the main thread. `told`: whether there was one.

    `hurry` is called at each after the first; within a signal handler, so that it may only leave a mark.
    """

    def __init__(self, hurry: Callable[[], None]) -> None:
        self.told = False
        self._hurry = hurry
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        """Takes them."""
        self._before = {each: signal.signal(each, self._tell) for each in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Gives them back."""
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _tell(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 -- as signals call it
        if self.told:
            self._hurry()
        self.told = True
