"""awa: its Python package over its engine in Rust, with the storage that a new installation gets."""

from dataclasses import dataclass
from typing import Any

import uvloop
from awa import AsyncClient

from bench.peers.program import Job, Meter, Peer, Program

QUEUE = "bench"


@dataclass
class Bench:
    """The arguments of a job."""

    payload: dict[str, Any]


class Awa(Peer):
    """Modes: `workers` of the queue, which are the jobs that run at once; `connections` of its pool."""

    async def open(self, dsn: str) -> None:
        self._dsn = dsn
        self._client = AsyncClient(dsn)

    async def install(self) -> None:
        """Its schema with the queue storage, which the first start of a worker would choose as well."""
        await self._client.migrate()
        await self._client.install_queue_storage()

    async def push(self, jobs: list[Job]) -> None:
        """Its COPY into queue storage, for producers with many jobs."""
        await self._client.enqueue_many_copy([Bench(job.payload) for job in jobs], queue=QUEUE)

    async def push_one(self, job: Job) -> None:
        await self._client.insert(Bench(job.payload), queue=QUEUE)

    async def drain(self, meter: Meter) -> None:
        """A worker that is stopped once the meter is over: it has no way to end when nothing is left."""
        await self.work(meter)

    async def work(self, meter: Meter) -> None:
        """A client with one queue, woken by its notifications."""
        client = AsyncClient(self._dsn, max_connections=self.mode["connections"])

        async def handle(job: Any) -> None:
            meter.handle(job.args.payload)

        client.task(Bench, queue=QUEUE)(handle)
        await client.start([(QUEUE, self.mode["workers"])])
        await meter.over.wait()
        await client.shutdown()
        await client.close()

    async def claim(self, size: int) -> int:  # noqa: ARG002 -- the verb of all peers
        """Raises TypeError: its claim is a part of its engine."""
        raise TypeError("awa claims in its engine only")

    async def recover(self, dsn: str) -> None:
        """Does nothing: its pool opens other connections by itself."""


if __name__ == "__main__":
    uvloop.run(Program(Awa()).run())
