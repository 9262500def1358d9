"""The log of a waiting gate: what the gate waits for, and each change."""

import logging
from collections.abc import Mapping
from contextvars import copy_context
from typing import Any


class WaitLog:
    """Logs what one task waits for, and each change.

    All lines have the context in which the WaitLog was created. Airflow's triggerer finds the log file of a line by
    context variables of the trigger's asyncio task, and the watcher reports changes from another asyncio task.
    """

    def __init__(self, logger: logging.Logger | Any) -> None:
        self._logger = logger
        self._context = copy_context()
        self._description: str | None = None
        self._error: str | None = None

    @property
    def state(self) -> dict[str, str]:
        """The texts logged last, for a later process of the same wait. Empty before the first line."""
        logged = {"description": self._description, "error": self._error}
        return {name: text for name, text in logged.items() if text is not None}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue the log of an earlier process of the same wait."""
        self._description, self._error = state.get("description"), state.get("error")

    def log_status(self, description: str) -> None:
        """Log the description if it changed."""
        if description != self._description:
            self._description = description
            self._context.run(self._logger.info, "%s", description)

    def log_error(self, error: str) -> None:
        """Log that a check failed, unless the last line has the same error."""
        if error != self._error:
            self._error = error
            self._context.run(self._logger.warning, "Cannot check the gate, will retry: error=%s", error)

    def log_recovery(self) -> None:
        """Log that a check succeeded, if the previous one failed."""
        if self._error is not None:
            self._error = None
            self._context.run(self._logger.info, "Can check the gate again")
