"""TaskQ itself: a minimal loop over TaskQueue, which polls, calls the handler and completes with its outputs."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from psycopg import Connection

from airflow_provider_taskq.queue import Condition, Decision, NewTask, Owner, Result, Task, TaskQueue, connect, install
from bench.peers.program import Job, Meter, Peer, in_threads, serve

TOPIC = "bench"
WAKE = f"LISTEN taskq_{TOPIC}"
WOKEN = f"NOTIFY taskq_{TOPIC}"


class TaskQ(Peer):
    """Modes: `size` of a poll, its `condition`, `threads`; an idle worker's `interval`; `notify`, to be woken."""

    async def open(self, dsn: str) -> None:
        self._dsn = dsn
        self._conn = connect(dsn, autocommit=True)
        self._queue = TaskQueue(self._conn)
        self._owner: Owner | None = None

    async def install(self) -> None:
        with connect(self._dsn) as conn:
            install(conn)
        self._queue.create_topic(TOPIC)

    async def push(self, jobs: list[Job]) -> None:
        with self._conn.transaction():
            self._queue.push(TOPIC, [NewTask(job.identifier, job.payload) for job in jobs])

    async def push_one(self, job: Job) -> None:
        """One push, and in the mode `notify` a notification after it, in a statement of its own."""
        self._queue.push(TOPIC, [NewTask(job.identifier, job.payload)])
        if self.mode.get("notify"):
            self._conn.execute(WOKEN)

    async def drain(self, meter: Meter) -> None:
        in_threads(partial(self._drain, meter), self.mode.get("threads", 1))

    async def work(self, meter: Meter) -> None:
        """Polls; after an empty poll, waits for the interval or a notification."""
        loop = Loop(self._conn, meter, self.mode)
        if self.mode.get("notify"):
            self._conn.execute(WAKE)
        while not meter.over.is_set():
            if loop.step():
                continue
            if self.mode.get("notify"):
                for _ in self._conn.notifies(timeout=self.mode["interval"], stop_after=1):
                    pass
            else:
                await asyncio.sleep(self.mode["interval"])

    async def claim(self, size: int) -> int:
        self._owner = self._owner or self._queue.register("bench")
        return len(self._queue.poll(TOPIC, self._owner, size))

    def _drain(self, meter: Meter) -> None:
        with connect(self._dsn, autocommit=True) as conn:
            loop = Loop(conn, meter, self.mode)
            while not meter.over.is_set() and loop.step():
                pass


class Loop:
    """Poll, handle, complete."""

    def __init__(self, conn: Connection, meter: Meter, mode: Mapping[str, Any]) -> None:
        self._queue = TaskQueue(conn)
        self._owner = self._queue.register(f"bench/{conn.info.backend_pid}")
        self._meter = meter
        self._size = mode["size"]
        self._condition = Condition(mode.get("condition", "NONE"))
        self._decisions: dict[Task | int, Decision | Result] = {}

    def step(self) -> int:
        """Completes the handled tasks, claims the next ones and handles them; returns their number."""
        found = self._queue.exchange(self._owner, self._decisions, TOPIC, self._size, condition=self._condition)
        handle = self._meter.handle
        self._decisions = {task: Decision(Result.SUCCESS, handle(_document(task.payload))) for task in found}
        return len(found)


def _document(payload: object) -> dict[str, Any]:
    if not isinstance(payload, dict):
        raise TypeError("a payload of the benchmark is a document")
    return payload


if __name__ == "__main__":
    serve(TaskQ())
