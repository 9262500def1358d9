"""Claims of millions: chunk by chunk, each its own transaction, on several connections at once.

The server works on each claim in one process. Claims skip what others have locked, so that several share a large
one without waiting for each other.
"""

import math
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from typing import Any

import psycopg

from airflow_provider_taskq.queue import Order, Owner, TaskQueue, TaskQueueError
from airflow_provider_taskq.spark.connection import Route

CHUNK = 50_000  # tasks a transaction, so that none is long
CONNECTIONS = 4  # at most: what else needs the server has its turn, too
CANCEL_SECONDS = 5.0


class Claiming:
    """One claim of up to `size` tasks, whose chunks are shared out among connections."""

    def __init__(self, route: Route, topic: str, lease: Owner, order: Order, size: int) -> None:
        self._route = route
        self._topic = topic
        self._lease = lease
        self._order = order
        self._left = size
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._helping: list[psycopg.Connection[Any]] = []

    def claim(self, connections: int) -> int:
        """Claims on so many connections at once, and returns how many; what was claimed is held if a chunk fails.

        The first chunk goes alone: mostly it is all that there is.
        """
        with self._route.connect(autocommit=True) as conn:
            claimed, more = self._chunk(TaskQueue(conn))
            if not more:
                return claimed
            helpers = min(connections, CONNECTIONS, math.ceil(self._left / CHUNK)) - 1
            with ThreadPoolExecutor(max(1, helpers), thread_name_prefix="taskq claim") as pool:
                try:
                    others = [pool.submit(self._help) for _ in range(helpers)]
                    claimed += self._rest(conn)
                    return claimed + sum(other.result() for other in as_completed(others))
                except BaseException:
                    self._stop()
                    raise

    def _help(self) -> int:
        """Claims on a connection more, if there is one to be had."""
        try:
            conn = self._route.connect(autocommit=True)
        except TaskQueueError:
            return 0
        with conn:
            self._helping.append(conn)
            try:
                return self._rest(conn)
            except BaseException:
                self._stopped.set()  # the others end after the chunk that they are at
                raise

    def _rest(self, conn: psycopg.Connection[Any]) -> int:
        """Claims chunk by chunk until nothing is left."""
        claimed, more = 0, True
        while more:
            got, more = self._chunk(TaskQueue(conn))
            claimed += got
        return claimed

    def _stop(self) -> None:
        """Lets the others end, in the midst of a chunk, too."""
        self._stopped.set()
        for conn in self._helping:
            with suppress(psycopg.Error):
                conn.cancel_safe(timeout=CANCEL_SECONDS)

    def _chunk(self, queue: TaskQueue) -> tuple[int, bool]:
        """Claims a chunk; how many tasks that was, and whether there may be more.

        What could not be had is left to the other lanes, whose locks may have been in the way.
        """
        with self._lock:
            size = 0 if self._stopped.is_set() else min(CHUNK, self._left)
            self._left -= size
        got = queue.claim(self._topic, self._lease, size, self._order) if size else 0
        with self._lock:
            self._left += size - got
        return got, 0 < got == size
