"""Hooks: what a worker tells those who want to know, as it happens and in the thread where it happens."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_provider_taskq.queue import Decision, Task

log = logging.getLogger(__name__)


class WorkerListener:
    """Hears what a worker does; this one does nothing with it. What a hook raises is logged, and the work goes on.

    `trace` is what `on_start` returned for the batch, such as a span or a number: it comes along to the end.
    """

    def on_fatal(self, error: BaseException) -> None:
        """A poll failed, a lease was lost, or a batch could neither be completed nor failed. The worker goes on.

        All but after an error of its limiter: that ends it.
        """

    def on_empty(self) -> None:
        """A poll found nothing."""

    def on_start(self, tasks: Sequence[Task]) -> Any:  # noqa: ARG002
        """A batch was polled; returns its trace."""
        return None

    def on_dispatched(self, trace: Any) -> None:
        """The batch goes to its handler, in this thread."""

    def on_callback(self, trace: Any, decisions: Mapping[Task, Decision]) -> None:
        """The handler has decided; nothing is committed yet."""

    def on_complete(self, trace: Any, decisions: Mapping[Task, Decision]) -> None:
        """The decisions are committed."""

    def on_error(self, trace: Any, error: BaseException) -> None:
        """The batch as a whole failed, and is FAILED for this reason, or was given up: it will come again."""

    def on_stuck(self, trace: Any, seconds: float, stack: str) -> None:
        """The handler has taken so long by now, and stands there."""


class FatalListener(WorkerListener):
    """Hears of what is fatal, and of nothing else."""

    def __init__(self, call: Callable[[BaseException], None]) -> None:
        self._call = call

    def on_fatal(self, error: BaseException) -> None:
        """Passes it on."""
        self._call(error)


class Telling(WorkerListener):
    """Tells a listener, and lets nothing that it raises reach the worker."""

    def __init__(self, listener: WorkerListener | None) -> None:
        self._listener = listener

    def on_fatal(self, error: BaseException) -> None:
        """Tells of it, and logs it."""
        log.error("A worker met an error: %s: %s", type(error).__name__, error)
        self._tell("on_fatal", error)

    def on_empty(self) -> None:
        """Tells of it."""
        if self._listener is not None:
            self._tell("on_empty")

    def on_start(self, tasks: Sequence[Task]) -> Any:
        """Tells of it, and returns the trace."""
        return self._tell("on_start", tasks) if self._listener is not None else None

    def on_dispatched(self, trace: Any) -> None:
        """Tells of it."""
        if self._listener is not None:
            self._tell("on_dispatched", trace)

    def on_callback(self, trace: Any, decisions: Mapping[Task, Decision]) -> None:
        """Tells of it."""
        if self._listener is not None:
            self._tell("on_callback", trace, decisions)

    def on_complete(self, trace: Any, decisions: Mapping[Task, Decision]) -> None:
        """Tells of it."""
        if self._listener is not None:
            self._tell("on_complete", trace, decisions)

    def on_error(self, trace: Any, error: BaseException) -> None:
        """Tells of it."""
        self._tell("on_error", trace, error)

    def on_stuck(self, trace: Any, seconds: float, stack: str) -> None:
        """Tells of it."""
        self._tell("on_stuck", trace, seconds, stack)

    def _tell(self, hook: str, *what: Any) -> Any:
        """Calls a hook."""
        if self._listener is None:
            return None
        try:
            return getattr(self._listener, hook)(*what)
        except Exception:
            log.exception("A worker's listener failed in %s", hook)
            return None
