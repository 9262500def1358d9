"""What a gate logs while it waits in a worker, and says when its time is over."""

from typing import TYPE_CHECKING, Any

import psycopg

from airflow_provider_taskq.queue.errors import first_line, is_connection_lost, is_transient

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.sdk import Context

    from airflow_provider_taskq.hooks.taskq import TaskQHook
    from airflow_provider_taskq.triggers.waits import Wait

_KEY = "taskq_gate_log"


class GateLog:
    """Logs what one try of a gate waits for, and each change.

    In mode reschedule each look is a process of its own: with `stored`, what was logged last is kept in the task's
    state store (Airflow 3.3), so that the next process logs changes only.
    """

    def __init__(
        self, hook: "Callable[[], TaskQHook]", wait: "Wait[Any]", logger: Any, context: "Context", *, stored: bool
    ) -> None:
        from airflow_provider_taskq.triggers.wait_log import WaitLog

        self._hook = hook
        self._wait = wait
        self._store: Any = context.get("task_state_store") if stored else None
        self._try_number = getattr(context["ti"], "try_number", None)
        self._log = WaitLog(logger)
        self._kept = self._stored()
        if self._kept.get("try_number") == self._try_number:
            self._log.resume(self._kept)

    def log_status(self) -> None:
        """Logs what the gate waits for, if that has changed."""
        from airflow_provider_taskq.triggers.snapshot import sentence_now

        with self._hook().transaction() as queue:
            sentence, status = sentence_now(queue, self._wait)
        self._log.back()
        self._log.status(sentence, status)
        self._keep()

    def log_status_if_possible(self) -> None:
        """The same for a gate that goes on in the triggerer, which notices by itself what is wrong."""
        try:
            self.log_status()
        except Exception as error:  # noqa: BLE001  see above
            self._log.lost(first_line(error))

    def log_loss(self, error: Exception, *, silent: bool) -> bool:
        """Logs an error that may pass; False for one that is to be raised, as the error of a first look is.

        A gate that is `silent` (`silent_fail`) lets all errors pass.
        """
        if not silent and not (self._log.state.get("sentence") and self._passes(error)):
            return False
        self._log.lost(first_line(error))
        self._keep()
        return True

    def sentence(self) -> str:
        """What the gate waits for now, or why that cannot be told."""
        from airflow_provider_taskq.triggers.snapshot import sentence_now

        try:
            with self._hook().transaction() as queue:
                return sentence_now(queue, self._wait)[0]
        except Exception as error:  # noqa: BLE001  it is part of a message about something else
            return f"The last look failed: {first_line(error)}"

    def _passes(self, error: Exception) -> bool:
        """Whether another look may succeed: the connection failed, or the transaction."""
        from airflow_provider_taskq.hooks.taskq import TaskQConnectionError

        connection = isinstance(error, TaskQConnectionError | psycopg.OperationalError)
        return connection or is_transient(error) or is_connection_lost(error)

    def _stored(self) -> dict[str, Any]:
        """What the process before has kept."""
        stored = self._store.get(_KEY) if self._store is not None else None
        return stored if isinstance(stored, dict) else {}

    def _keep(self) -> None:
        """Keeps what was logged for the next process."""
        kept = {"try_number": self._try_number, **self._log.state}
        if self._store is not None and kept != self._kept:
            self._store.set(_KEY, kept)
            self._kept = kept
