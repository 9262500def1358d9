"""Oban for Python: an embedded instance on uvloop, as its command line starts it."""

import uuid
from typing import Any

import oban
import oban.schema
import uvloop

from bench.peers.program import Job, Meter, Peer, Program

QUEUE = "default"
RESCUE_EVERY = 2.0  # seconds between two looks for jobs to rescue, with a lease


class Oban(Peer):
    """Modes: `limit` of jobs that run at once in a queue; `lease`, seconds after which a running job is rescued.

    With a lease, the instance keeps its node name over restarts. An instance with another name has to wait until the
    leadership of a killed one expires (30 s), and only the leader rescues jobs.
    """

    async def open(self, dsn: str) -> None:
        """Its pool, an instance that only enqueues, and a worker class that calls the current meter."""
        self._meter = Meter()
        self._node = str(uuid.uuid4())
        self._pool = await oban.Oban.create_pool(dsn)
        self._client = oban.Oban(pool=self._pool, name="client")
        self._worker = oban.worker(queue=QUEUE)(_worker_class(self))

    async def install(self) -> None:
        await oban.schema.install(self._pool)

    async def push(self, jobs: list[Job]) -> None:
        await self._client.enqueue_many([self._worker.new(job.payload) for job in jobs])

    async def push_one(self, job: Job) -> None:
        await self._client.enqueue(self._worker.new(job.payload))

    async def drain(self, meter: Meter) -> None:
        """An instance that is stopped once the meter is over: it has no way to end when nothing is left."""
        await self.work(meter)

    async def work(self, meter: Meter) -> None:
        """An instance with one queue."""
        self._meter = meter
        options: dict[str, Any] = {}
        if lease := self.mode.get("lease"):
            options = {"node": "worker", "lifeline": {"interval": RESCUE_EVERY, "rescue_after": lease}}
        async with oban.Oban(pool=self._pool, queues={QUEUE: self.mode["limit"]}, name="worker", **options):
            await meter.over.wait()

    async def recover(self, dsn: str) -> None:
        """Does nothing: its pool opens other connections by itself."""

    async def claim(self, size: int) -> int:
        """The statement of its producer."""
        query = self._client._query  # noqa: SLF001 -- it has no public claim
        return len(await query.fetch_jobs(demand=size, queue=QUEUE, node=self._node, uuid=self._node))

    def handle(self, payload: dict[str, Any]) -> None:
        self._meter.handle(payload)


def _worker_class(peer: Oban) -> type:

    class Bench:
        async def process(self, job: Any) -> None:
            peer.handle(job.args)

    return Bench


if __name__ == "__main__":
    uvloop.run(Program(Oban()).run())
