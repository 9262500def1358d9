"""What a handler of events may say by raising, and what a reader refuses."""

from airflow_provider_taskq.queue import TaskQueueError


class NonTransient(Exception):
    """Raised by a handler: no retry will help. The partition's loop ends, its progress stays before this event."""


class Interrupted(Exception):
    """Raised by a handler that was asked to end: the partition's loop ends quietly, without progress."""


class AlreadyRunning(TaskQueueError):
    """A reader was started that runs already."""


class HandlerFailed(Exception):
    """Within a loop: what a handler raised is the cause. Told so from what the queue raises."""
