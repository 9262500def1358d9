"""Claims millions of tasks in chunks, each in a transaction of its own, on several connections at once.

The server executes each claim in one process. A claim skips the rows that another has locked. So several connections
share a large claim without waiting for each other.
"""

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from typing import Any

import psycopg

from airflow_provider_taskq.queue import Order, Owner, TaskQueue, TaskQueueError
from airflow_provider_taskq.spark.connection import ConnectionInfo

CHUNK = 50_000  # tasks in a transaction, so that no transaction is long
MAX_CONNECTIONS = 4  # each keeps a processor of the server busy, which its other clients need too
CANCEL_SECONDS = 5.0  # for the request that cancels a statement


class ParallelClaimer:
    """One claim of up to `size` tasks, whose chunks several connections claim."""

    def __init__(self, connection_info: ConnectionInfo, topic: str, lease: Owner, order: Order, size: int) -> None:
        self._connection_info = connection_info
        self._topic = topic
        self._lease = lease
        self._order = order
        self._left = size
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._connections: list[psycopg.Connection[Any]] = []

    def claim(self, connections: Callable[[], int]) -> int:
        """Claim on up to `connections()` connections, and return the number of tasks.

        If a chunk fails, the tasks of the other chunks stay held.
        """
        with self._connection_info.queue(autocommit=True) as queue:
            self._connections.append(queue.conn)
            # The first chunk runs alone: usually it holds all tasks that are ready.
            claimed, more = self._claim_chunk(queue)
            if not more:
                return claimed
            threads = min(connections(), MAX_CONNECTIONS, math.ceil(self._left / CHUNK)) - 1
            with ThreadPoolExecutor(max(1, threads), thread_name_prefix="taskq claim") as pool:
                try:
                    others = [pool.submit(self._claim_on_new_connection) for _ in range(threads)]
                    claimed += self._claim_rest(queue)
                    return claimed + sum(other.result() for other in as_completed(others))
                except BaseException:
                    self.cancel()
                    raise

    def stop(self) -> None:
        """Claim no further chunk, from any thread."""
        self._stopped.set()

    def cancel(self) -> None:
        """Claim no further chunk, and cancel the current ones, from any thread."""
        self._stopped.set()
        for conn in self._connections:
            with suppress(psycopg.Error):
                conn.cancel_safe(timeout=CANCEL_SECONDS)

    def _claim_on_new_connection(self) -> int:
        try:
            conn = self._connection_info.connect(autocommit=True)
        except TaskQueueError:
            return 0  # for example too many connections: the other threads claim the share of this one
        with conn:
            self._connections.append(conn)
            try:
                return self._claim_rest(TaskQueue(conn))
            except BaseException:
                self._stopped.set()  # the other connections stop after their current chunk
                raise

    def _claim_rest(self, queue: TaskQueue) -> int:
        total, more = 0, True
        while more:
            claimed, more = self._claim_chunk(queue)
            total += claimed
        return total

    def _claim_chunk(self, queue: TaskQueue) -> tuple[int, bool]:
        """Claim one chunk. Return the number of tasks, and whether there may be more."""
        with self._lock:
            size = 0 if self._stopped.is_set() else min(CHUNK, self._left)
            self._left -= size
        claimed = queue.claim(self._topic, self._lease, size, self._order) if size else 0
        with self._lock:
            # The locks of the other connections may have hidden tasks. So another connection may claim the rest.
            self._left += size - claimed
        return claimed, 0 < claimed == size


class ClaimAhead:
    """Claims the tasks of a drain's next round in a thread, while the current round works."""

    def __init__(self, claimer: ParallelClaimer, connections: int) -> None:
        self._claimer = claimer
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="taskq claim ahead")
        self._claimed = self._pool.submit(claimer.claim, lambda: connections)

    def result(self) -> int:
        """Wait for the claim, and return the number of tasks. Raises its error."""
        with self._pool:
            return self._claimed.result()

    def stop(self) -> int:
        """Stop after the current chunk, and return the number of tasks. Raises the error of the claim."""
        self._claimer.stop()
        return self.result()

    def cancel(self) -> None:
        """Cancel the claim, and wait for its end. The tasks of finished chunks stay held."""
        self._claimer.cancel()
        self._pool.shutdown()
