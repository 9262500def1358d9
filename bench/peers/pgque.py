"""PgQue: its SQL, and the consumer of its Python package; this program ticks and maintains it, as pg_cron would."""

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import pgque
import psycopg

from bench.peers.program import Job, Meter, Peer, serve

QUEUE, CONSUMER = "bench", "bench"
TICK_EVERY = 0.05  # seconds; the public benchmark drives it alike
MAINTAIN_EVERY = 10.0
RECONNECT_AFTER = 0.2
SETTINGS = {"ticker_max_count": "200", "ticker_max_lag": "100 milliseconds", "ticker_idle_period": "500 milliseconds"}


class PgQue(Peer):
    """No modes: one consumer that takes the batches that the ticker makes."""

    async def open(self, dsn: str) -> None:
        self._dsn = dsn
        self._client = pgque.connect(dsn, autocommit=True)

    async def install(self) -> None:
        """Its SQL, from the file that TASKQ_BENCH_PGQUE_SQL names, and a queue with short ticks."""
        conn = self._client.conn
        conn.execute(_sql())
        conn.execute("SELECT pgque.create_queue(%s)", (QUEUE,))
        for name, value in SETTINGS.items():
            conn.execute("SELECT pgque.set_queue_config(%s, %s, %s)", (QUEUE, name, value))
        self._client.subscribe(QUEUE, CONSUMER)

    async def push(self, jobs: list[Job]) -> None:
        self._client.send_batch(QUEUE, "job", [job.payload for job in jobs])

    async def push_one(self, job: Job) -> None:
        self._client.send(QUEUE, job.payload, type="job")

    async def drain(self, meter: Meter) -> None:
        """A consumer that is stopped once the meter is over: it has no way to end when nothing is left."""
        await self.work(meter)

    async def work(self, meter: Meter) -> None:
        """A consumer, woken by the notification of each tick, in a thread; the ticker and the maintenance in others."""
        over = Event()
        consumers: list[pgque.Consumer] = []

        def consume() -> None:
            while not over.is_set():
                consumer = pgque.Consumer(self._dsn, queue=QUEUE, name=CONSUMER, poll_interval=1)
                consumer.on("job")(lambda message: meter.handle(json.loads(message.payload)))
                consumers[:] = [consumer]
                with suppress(psycopg.OperationalError, pgque.PgqueError):
                    consumer.start()
                over.wait(RECONNECT_AFTER)

        maintain = ("SELECT pgque.maint()", "SELECT pgque.maint_rotate_tables_step2()")
        threads = [
            Thread(target=consume, daemon=True),
            Thread(target=self._repeat, args=(over, TICK_EVERY, (f"SELECT pgque.ticker('{QUEUE}')",)), daemon=True),
            Thread(target=self._repeat, args=(over, MAINTAIN_EVERY, maintain), daemon=True),
        ]
        for thread in threads:
            thread.start()
        await meter.over.wait()
        over.set()
        for consumer in consumers:
            consumer.stop()
        await _joined(threads)

    def _repeat(self, over: Event, every: float, statements: tuple[str, ...]) -> None:
        """Runs statements again and again, each in a transaction of its own; connects again after an error."""
        while not over.is_set():
            with suppress(psycopg.OperationalError), psycopg.connect(self._dsn, autocommit=True) as conn:
                while not over.wait(every):
                    for statement in statements:
                        conn.execute(statement.encode())
            over.wait(RECONNECT_AFTER)

    async def claim(self, size: int) -> int:  # noqa: ARG002 -- the verb of all peers
        """Raises TypeError: its batches are made by ticks, not by size."""
        raise TypeError("a batch of PgQue has the size that the ticker gave it")


def _sql() -> bytes:
    """Its schema, which is no part of this repository."""
    return Path(os.environ["TASKQ_BENCH_PGQUE_SQL"]).read_bytes()


async def _joined(threads: list[Thread]) -> None:
    join: Callable[[Thread], None] = Thread.join
    await asyncio.gather(*(asyncio.to_thread(join, thread) for thread in threads))


if __name__ == "__main__":
    serve(PgQue())
