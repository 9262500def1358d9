"""TaskQ's worker: airflow_provider_taskq.worker.Worker, which bench/worker.py measures.

It runs in the virtual environment of taskq.py, which holds psycopg and nothing more.
"""

import asyncio
import threading
from contextlib import suppress
from datetime import timedelta
from typing import Any

from psycopg import OperationalError

from airflow_provider_taskq.queue import Decision, NewTask, Result, Task
from airflow_provider_taskq.worker import Worker, WorkerListener, each
from bench.peers.program import Job, Meter, serve
from bench.peers.taskq import TOPIC, TaskQ, _document

LOOK = 0.002  # seconds between two checks for the end


class WorkerPeer(TaskQ):
    """Modes: those of Worker (`size`, `workers`, `ready`, `lease`); `notify` wakes it after a push, `policy` by it."""

    _notifies = False  # whether the policy of the topic notifies

    async def push(self, jobs: list[Job]) -> None:
        """One push, and in the mode `notify` a notification after it, which may be lost: the worker also polls."""
        await super().push(jobs)
        if self.mode.get("notify"):
            with suppress(OperationalError):
                self._queue.notify(TOPIC)

    async def push_one(self, job: Job) -> None:
        """One push. In the mode `notify` a notification follows, in the mode `policy` the push itself notifies."""
        if self.mode.get("policy") and not self._notifies:
            self._queue.alter_topic(TOPIC, notify=True)
            self._notifies = True
        self._queue.push(TOPIC, [NewTask(job.identifier, job.payload)])
        if self.mode.get("notify"):
            self._queue.notify(TOPIC)

    async def drain(self, meter: Meter) -> None:
        """Runs a worker, and stops it when a poll finds nothing."""
        empty = threading.Event()
        worker = self._worker(meter, _Until(empty))
        worker.start()
        while not (meter.over.is_set() or empty.is_set()):  # noqa: ASYNC110 -- set by other threads
            await asyncio.sleep(LOOK)
        worker.stop(None)

    async def work(self, meter: Meter) -> None:
        """Runs a worker that waits for tasks."""
        worker = self._worker(meter, None)
        worker.start()
        while not meter.over.is_set():  # noqa: ASYNC110 -- set by another thread
            await asyncio.sleep(0.05)
        worker.stop(None)

    def _worker(self, meter: Meter, listener: WorkerListener | None) -> Worker:
        def handle(task: Task) -> Decision:
            return Decision(Result.SUCCESS, meter.handle(_document(task.payload)))

        names = ("size", "workers", "ready", "lease")
        options: dict[str, Any] = {name: self.mode[name] for name in names if name in self.mode}
        return Worker(
            self._dsn,
            TOPIC,
            each(handle),
            listener=listener,
            pause=timedelta(seconds=self.mode.get("interval", 1.0)),
            **options,
        )


class _Until(WorkerListener):
    """Sets an event when a poll finds nothing."""

    def __init__(self, empty: threading.Event) -> None:
        self._empty = empty

    def on_empty(self) -> None:
        self._empty.set()


if __name__ == "__main__":
    serve(WorkerPeer())
