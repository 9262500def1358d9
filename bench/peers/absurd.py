"""Absurd: the SQL that its command line carries, its functions for pushes, and the worker of its Python package."""

import asyncio
import json

import psycopg
from absurd_sdk import AsyncAbsurd, AsyncTaskContext, JsonObject
from absurdctl import BUNDLED_SCHEMA_SQL

from bench.peers.program import PREPARED, Job, Meter, Peer, serve

QUEUE = "bench"
SPAWN = f"SELECT absurd.spawn_task('{QUEUE}', 'bench', %s::jsonb, '{{}}'::jsonb)"


class Absurd(Peer):
    """Modes: `concurrency` of the worker, `batch` of a claim, `interval` in seconds between two claims of nothing."""

    async def open(self, dsn: str) -> None:
        self._dsn = dsn
        self._conn = await psycopg.AsyncConnection.connect(dsn, autocommit=True, prepare_threshold=PREPARED)

    async def install(self) -> None:
        await self._conn.execute(BUNDLED_SCHEMA_SQL.encode())
        await self._conn.execute("SELECT absurd.create_queue(%s)", (QUEUE,))

    async def push(self, jobs: list[Job]) -> None:
        """Its function for one task, many times in one transaction: it has none for many."""
        async with self._conn.transaction(), self._conn.cursor() as cursor:
            await cursor.executemany(SPAWN.encode(), [(json.dumps(job.payload),) for job in jobs])

    async def push_one(self, job: Job) -> None:
        await self._conn.execute(SPAWN.encode(), (json.dumps(job.payload),))

    async def drain(self, meter: Meter) -> None:
        """A worker that is stopped once the meter is over: it has no way to end when nothing is left."""
        await self.work(meter)

    async def work(self, meter: Meter) -> None:
        app = AsyncAbsurd(self._dsn, queue_name=QUEUE)

        async def handle(params: JsonObject, _context: AsyncTaskContext) -> JsonObject:
            return meter.handle(dict(params))

        app.register_task("bench")(handle)
        stopped = asyncio.create_task(meter.over.wait())
        stopped.add_done_callback(lambda _: app.stop_worker())
        try:
            await app.start_worker(
                concurrency=self.mode["concurrency"],
                batch_size=self.mode["batch"],
                poll_interval=self.mode["interval"],
            )
        finally:
            stopped.cancel()
            await app.close()

    async def claim(self, size: int) -> int:
        found = await self._conn.execute("SELECT * FROM absurd.claim_task(%s, 'bench', 120, %s)", (QUEUE, size))
        return len(await found.fetchall())


if __name__ == "__main__":
    serve(Absurd())
