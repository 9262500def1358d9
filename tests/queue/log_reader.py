"""A reader that follows the log of a topic, for tests."""

from airflow_provider_taskq.queue import Cursor, TaskQueue


class Reader:
    """Follows the log of a topic from its beginning."""

    def __init__(self, queue: TaskQueue, topic: str = "work") -> None:
        self.queue, self.topic = queue, topic
        self.after: Cursor | None = None

    def more(self, size: int = 1000) -> list[str]:
        """Returns the identifiers of the tasks since the last call."""
        events = self.queue.events(self.topic, self.after, size)
        self.after = events.cursor
        return [task.identifier for _, task in events]
