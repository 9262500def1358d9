"""Claims of millions: chunk by chunk, each its own transaction, on several connections at once.

The server works on each claim in one process. Claims skip what others have locked, so that several share a large
one without waiting for each other.
"""

import math
import threading
from concurrent.futures import ThreadPoolExecutor

from airflow_provider_taskq.queue import Order, Owner, TaskQueue
from airflow_provider_taskq.spark.route import Route

CHUNK = 50_000  # tasks a transaction, so that none is long
CONNECTIONS = 4  # at most: what else needs the server has its turn, too


class Claiming:
    """One claim of up to `size` tasks, whose chunks are shared out among connections."""

    def __init__(self, route: Route, topic: str, lease: Owner, order: Order, size: int) -> None:
        self._route = route
        self._topic = topic
        self._lease = lease
        self._order = order
        self._left = size
        self._lock = threading.Lock()

    def claim(self, connections: int) -> int:
        """Claims on so many connections at once, and returns how many; what was claimed is held if a chunk fails.

        The first chunk goes alone: mostly it is all that there is.
        """
        with self._route.connect(autocommit=True) as conn:
            claimed, more = self._chunk(TaskQueue(conn))
        lanes = min(connections, CONNECTIONS, math.ceil(self._left / CHUNK)) if more else 0
        if not lanes:
            return claimed
        with ThreadPoolExecutor(lanes, thread_name_prefix="taskq claim") as pool:
            try:
                return claimed + sum(pool.map(self._lane, range(lanes)))
            except BaseException:
                self._left = 0  # the others end after the chunk that they are at
                raise

    def _lane(self, _number: int) -> int:
        """Claims chunk by chunk until nothing is left."""
        claimed, more = 0, True
        with self._route.connect(autocommit=True) as conn:
            while more:
                got, more = self._chunk(TaskQueue(conn))
                claimed += got
        return claimed

    def _chunk(self, queue: TaskQueue) -> tuple[int, bool]:
        """Claims a chunk; how many tasks that was, and whether there may be more.

        What could not be had is left to the other lanes, whose locks may have been in the way.
        """
        with self._lock:
            size = min(CHUNK, self._left)
            self._left -= size
        got = queue.claim(self._topic, self._lease, size, self._order) if size else 0
        with self._lock:
            self._left += size - got
        return got, 0 < got == size
