"""pgqueuer: its asyncpg driver on uvloop, as in its own benchmark, and the autovacuum settings that it advises."""

import asyncio
import json
import uuid
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import AsyncpgDriver, PgQueuer, Queries
from pgqueuer import Job as PgqJob
from pgqueuer.queries import EntrypointExecutionParameter
from pgqueuer.types import QueueExecutionMode

from bench.peers.program import Job, Meter, Peer, Program

ENTRYPOINT = "bench"
LOOK = timedelta(seconds=2)  # between two looks of an idle consumer, with a lease


class Pgqueuer(Peer):
    """Modes: `batch` size of a dequeue; `consumers` in one process; `limit` of jobs that run at once; `concurrency`.

    `lease`: seconds without a heartbeat after which a job is handed out again.
    """

    async def open(self, dsn: str) -> None:
        """A connection for pushes; every consumer opens one of its own, as its driver closes it at the end."""
        self._dsn = dsn
        self._manager = uuid.uuid4()
        self._queries = Queries(AsyncpgDriver(await asyncpg.connect(dsn)))

    async def install(self) -> None:
        """The schema, durable as by default."""
        await self._queries.install()
        await self._queries.optimize_autovacuum()

    async def push(self, jobs: list[Job]) -> None:
        payloads = [json.dumps(job.payload).encode() for job in jobs]
        await self._queries.enqueue([ENTRYPOINT] * len(jobs), payloads, [0] * len(jobs))

    async def push_one(self, job: Job) -> None:
        await self._queries.enqueue(ENTRYPOINT, json.dumps(job.payload).encode())

    async def drain(self, meter: Meter) -> None:
        """Its consumers in drain mode."""
        await self._run(meter, QueueExecutionMode.drain)

    async def work(self, meter: Meter) -> None:
        """A consumer as `pgq run` starts it, woken by its trigger."""
        await self._run(meter, QueueExecutionMode.continuous)

    async def claim(self, size: int) -> int:
        found = await self._queries.dequeue(
            batch_size=size,
            entrypoints={ENTRYPOINT: EntrypointExecutionParameter(concurrency_limit=0)},
            queue_manager_id=self._manager,
            global_concurrency_limit=None,
            heartbeat_timeout=timedelta(seconds=30),
        )
        return len(found)

    async def _run(self, meter: Meter, how: QueueExecutionMode) -> None:
        """Runs consumers until they end; shuts them down when the meter is over."""
        options: dict[str, timedelta] = {}
        if lease := self.mode.get("lease"):
            options = {"heartbeat_timeout": timedelta(seconds=lease), "dequeue_timeout": LOOK}
        consumers = [await self._consumer(meter) for _ in range(self.mode.get("consumers", 1))]
        over = asyncio.create_task(meter.over.wait())
        over.add_done_callback(lambda _: [consumer.shutdown.set() for consumer in consumers])
        try:
            await asyncio.gather(
                *(
                    consumer.run(
                        batch_size=self.mode["batch"],
                        mode=how,
                        max_concurrent_tasks=self.mode.get("limit"),
                        **options,
                    )
                    for consumer in consumers
                )
            )
        finally:
            over.cancel()

    async def _consumer(self, meter: Meter) -> PgQueuer:
        consumer = PgQueuer(AsyncpgDriver(await asyncpg.connect(self._dsn)))

        async def handle(job: PgqJob) -> None:
            meter.handle(json.loads(job.payload or b""))

        consumer.entrypoint(ENTRYPOINT, concurrency_limit=self.mode.get("concurrency", 0))(handle)
        return consumer


if __name__ == "__main__":
    uvloop.run(Program(Pgqueuer()).run())
