"""What is written into a waiting task's own log: what it waits for, and each change of that."""

import logging
import time
from collections.abc import Callable, Mapping
from contextvars import copy_context
from typing import Any

from airflow_provider_taskq.queue import TopicStatus

_FIRST_PAUSE = (
    10.0  # seconds between two lines that differ in counts only: the pause grows, so that a busy topic fills no disk
)
_LONGEST_PAUSE = 300.0


class WaitLog:
    """Logs a wait from the context in which it was made, whatever task of the event loop reports the change.

    Airflow's triggerer finds the file of a log line by context variables, which it binds in the asyncio task of each
    trigger. The watcher, which learns of changes, works in another one.
    """

    def __init__(self, logger: logging.Logger | Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._context = copy_context()
        self._sentence: str | None = None
        self._pause: str | None = None
        self._reason: str | None = None
        self._between = _FIRST_PAUSE
        self._quiet_until = 0.0

    @property
    def state(self) -> dict[str, Any]:
        """What was logged last, for a later process of the same wait; empty before anything was."""
        said = {"sentence": self._sentence, "pause": self._pause, "reason": self._reason}
        return {name: text for name, text in said.items() if text is not None}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Goes on from what an earlier process of the same wait has logged."""
        self._sentence, self._pause, self._reason = (state.get(name) for name in ("sentence", "pause", "reason"))

    def status(self, sentence: str, status: TopicStatus) -> None:
        """Logs what is waited for if it has changed; a change of counts alone may wait for a later call."""
        now = self._clock()
        counts_only = self._sentence is not None and status.pause == self._pause
        if sentence == self._sentence or (counts_only and now < self._quiet_until):
            return
        if counts_only:
            self._between = min(2 * self._between, _LONGEST_PAUSE)
        self._sentence, self._pause, self._quiet_until = sentence, status.pause, now + self._between
        self._context.run(self._logger.info, "%s", sentence)

    def lost(self, reason: str) -> None:
        """Logs that a look has failed, once for each reason."""
        if reason != self._reason:
            self._reason = reason
            self._context.run(self._logger.warning, "The gate cannot look and waits on: %s", reason)

    def back(self) -> None:
        """Logs that a look has succeeded, if the one before failed."""
        if self._reason is not None:
            self._reason = None
            self._context.run(self._logger.info, "The gate can look again.")
