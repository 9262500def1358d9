"""Listeners: hooks that a worker calls at its events, in the thread of the event."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from airflow_provider_taskq.queue import Decision, Task
from airflow_provider_taskq.queue.errors import first_line

log = logging.getLogger(__name__)


class WorkerListener:
    """Base class of listeners. Its hooks do nothing. The worker logs the exception of a hook, and goes on.

    `trace` is what `on_start` returned for the batch, such as a span or a number.
    """

    def on_fatal(self, error: BaseException) -> None:
        """React to a failed poll, a lost lease, or a batch that could neither be completed nor failed.

        The worker goes on, except after an error of its limiter, which stops the polls.
        """

    def on_empty(self) -> None:
        """React to a poll that found nothing."""

    def on_start(self, tasks: Sequence[Task]) -> Any:  # noqa: ARG002
        """React to a polled batch. Return the trace of the batch, which later hooks get."""
        return None

    def on_dispatched(self, trace: Any) -> None:
        """Act just before the worker calls the handler with the batch, in the same thread."""

    def on_callback(self, trace: Any, decisions: Mapping[Task, Decision]) -> None:
        """React to the decisions that the handler has returned. Nothing is committed yet."""

    def on_complete(self, trace: Any, decisions: Mapping[Task, Decision]) -> None:
        """React to the commit of the decisions."""

    def on_error(self, trace: Any, error: BaseException) -> None:
        """React to an error of the whole batch.

        The tasks are FAILED with this error, or the batch was abandoned and its tasks are polled again later.
        """

    def on_stuck(self, trace: Any, seconds: float, stack: str) -> None:
        """React to a handler that has run for this many seconds. `stack` is the current stack of the handler."""


class ListenerDispatcher(WorkerListener):
    """Calls the hooks of a listener, if there is one, and logs what they raise."""

    def __init__(self, listener: WorkerListener | None) -> None:
        self._on_fatal = (listener or WorkerListener()).on_fatal
        for hook in ("on_empty", "on_start", "on_dispatched", "on_callback", "on_complete", "on_error", "on_stuck"):
            if listener is not None:
                setattr(self, hook, partial(_call, hook, getattr(listener, hook)))

    def on_fatal(self, error: BaseException) -> None:
        """Log the error and call the hook."""
        log.error("worker error: error=%s: %s", type(error).__name__, first_line(error))
        _call("on_fatal", self._on_fatal, error)


def _call(hook: str, call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except Exception:
        log.exception("listener failed: hook=%s", hook)
        return None
