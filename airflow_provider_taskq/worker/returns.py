"""Tasks that come back at once: a drain tries each of them once, so that it ends."""

from collections.abc import Mapping
from datetime import timedelta

from airflow_provider_taskq.queue import Decision, Polled, Result, Task

# The same limit as in taskq_internal.skip_immediate_returns.
_AT_ONCE = timedelta(seconds=1)


class ReturnedTasks:
    """The tasks of a drain that may come back at once, and their attempts. Any thread may use this object.

    These are snoozes of less than a second, undecided tasks, and failures. A failure within the task's ttl is not
    counted as an attempt. A task that a poll hands out again in the same attempt has come back at once. The drain does
    not handle it again, but holds it until its leases end, so that no other poll of the drain gets it.
    """

    def __init__(self) -> None:
        self._attempts: dict[Task, int] = {}

    def note(self, committed: Mapping[Task, Decision]) -> None:
        """Note the committed decisions after which a task may come back at once."""
        for task, decision in committed.items():
            snoozed = decision.result is Result.SUSPENSION and decision.delay is not None and decision.delay < _AT_ONCE
            if snoozed or decision.result is Result.FAILURE:
                self._attempts[task] = task.attempt

    def without(self, polled: Polled) -> Polled:
        """Return the polled tasks without those that came back at once."""
        if not self._attempts:
            return polled
        fresh = Polled(task for task in polled if self._attempts.get(task) != task.attempt)
        fresh.fence = polled.fence
        return fresh
