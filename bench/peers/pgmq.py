"""pgmq: its SQL functions through psycopg, as its own Python client calls them; it has no worker."""

import asyncio
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from bench.peers.program import Job, Meter, Peer, in_threads, serve

VISIBLE_AFTER = 30  # seconds that a read message stays hidden, as in its README
WAIT = 1  # seconds that read_with_poll waits for a message
RECONNECT_AFTER = 0.2


class Pgmq(Peer):
    """Modes: `size` of a read, `threads`; `end`: archive, which keeps, or delete; `interval_ms`; `reconnect`."""

    async def open(self, dsn: str) -> None:
        self._dsn = dsn
        self._conn = psycopg.connect(dsn, autocommit=True)

    async def install(self) -> None:
        """Its SQL, from the file that TASKQ_BENCH_PGMQ_SQL names, and a queue."""
        self._conn.execute(_sql())
        self._conn.execute("SELECT pgmq.create('bench')")

    async def push(self, jobs: list[Job]) -> None:
        messages = [json.dumps(job.payload) for job in jobs]
        self._conn.execute("SELECT pgmq.send_batch('bench', %b::text[]::jsonb[])", (messages,))

    async def push_one(self, job: Job) -> None:
        self._conn.execute("SELECT pgmq.send('bench', %s::jsonb)", (json.dumps(job.payload),))

    async def drain(self, meter: Meter) -> None:
        in_threads(partial(self._drain, meter), self.mode.get("threads", 1))

    async def work(self, meter: Meter) -> None:
        """read_with_poll, which waits on the server."""
        function = f"pgmq.read_with_poll('bench', %s, %s, {WAIT}, {int(self.mode['interval_ms'])})"
        while not meter.over.is_set():
            try:
                _step(self._conn, function, meter, self.mode)
            except psycopg.OperationalError:
                if not self.mode.get("reconnect"):
                    raise
                await self._reconnect()

    async def _reconnect(self) -> None:
        """Opens a connection again, as a program with a loop of its own has to; it tries until there is a server."""
        while True:
            await asyncio.sleep(RECONNECT_AFTER)
            with suppress(psycopg.OperationalError):
                return await self.open(self._dsn)

    async def claim(self, size: int) -> int:
        return len(self._conn.execute("SELECT * FROM pgmq.read('bench', %s, %s)", (VISIBLE_AFTER, size)).fetchall())

    def _drain(self, meter: Meter) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            while not meter.over.is_set() and _step(conn, "pgmq.read('bench', %s, %s)", meter, self.mode):
                pass


def _sql() -> bytes:
    """Its schema, which is no part of this repository."""
    return Path(os.environ["TASKQ_BENCH_PGMQ_SQL"]).read_bytes()


def _step(conn: psycopg.Connection, function: str, meter: Meter, mode: Mapping[str, Any]) -> int:
    """Reads, handles and archives or deletes; returns how many."""
    statement = f"SELECT msg_id, message FROM {function}"
    found = conn.execute(statement.encode(), (VISIBLE_AFTER, mode["size"])).fetchall()
    for row in found:
        meter.handle(row[1])
    if found:
        conn.execute(f"SELECT pgmq.{mode['end']}('bench', %b::bigint[])".encode(), ([row[0] for row in found],))
    return len(found)


if __name__ == "__main__":
    serve(Pgmq())
