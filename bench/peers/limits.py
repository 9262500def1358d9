"""The limits: PostgreSQL with the same rows and none of a queue's rules, driven like a peer from the same Python."""

import json
from functools import partial

from airflow_provider_taskq.queue import connect, install
from bench import raw
from bench.peers.program import PREPARED, Job, Meter, Peer, in_threads, serve

CHUNK = 10_000

SINGLE = (
    "WITH task AS (INSERT INTO raw.task (sequence, created, due, pushed_in, topic_id, priority, identifier, payload)"
    " VALUES (%(n)s, now(), now(), pg_current_xact_id(), 1, 0, %(i)s, %(p)s::json))"
    " INSERT INTO raw.live (sequence, available_at, topic_id, priority, identifier)"
    " VALUES (%(n)s, now(), 1, 0, %(i)s)"
)
FINISH = (
    "UPDATE raw.wide w SET state = 6, completed = now(), output = d.output::json"
    " FROM unnest(%b::bigint[], %b::text[]) AS d (sequence, output)"
    " WHERE w.topic_id = 1 AND w.state = 0 AND w.holder = 1 AND w.sequence = d.sequence"
)


class Limits(Peer):
    """Modes: `size` of a claim. A bulk push fills the queue's tables; `wide` fills the one that is drained."""

    async def open(self, dsn: str) -> None:
        self._dsn = dsn
        self._conn = connect(dsn, autocommit=True, prepare_threshold=PREPARED)
        self._last = 0

    async def install(self) -> None:
        with connect(self._dsn) as conn:
            install(conn)
        self._conn.execute(raw.TABLES)

    async def push(self, jobs: list[Job]) -> None:
        """INSERT ... unnest, in the queue's chunks, in one transaction."""
        with self._conn.transaction():
            for start in range(0, len(jobs), CHUNK):
                chunk = jobs[start : start + CHUNK]
                numbers = list(range(self._last + 1, self._last + 1 + len(chunk)))
                self._last += len(chunk)
                identifiers = [job.identifier for job in chunk]
                self._conn.execute(raw.TASK, (numbers, identifiers, [_text(job) for job in chunk]))
                self._conn.execute(raw.LIVE, (numbers, identifiers))

    async def push_one(self, job: Job) -> None:
        self._last += 1
        self._conn.execute(SINGLE, {"n": self._last, "i": job.identifier, "p": _text(job)})

    async def drain(self, meter: Meter) -> None:
        """Claims, handles and finishes until no row is left, each thread on its own connection."""
        in_threads(partial(self._drain, meter), self.mode.get("threads", 1))

    def _drain(self, meter: Meter) -> None:
        with connect(self._dsn, autocommit=True, prepare_threshold=PREPARED) as conn:
            while not meter.over.is_set() and (found := conn.execute(raw.CLAIM, (self.mode["size"],)).fetchall()):
                outputs = [json.dumps(meter.handle(row[2])) for row in found]
                conn.execute(FINISH, ([row[0] for row in found], outputs))

    async def work(self, _meter: Meter) -> None:
        """Raises TypeError: bare statements have no idle worker."""
        raise TypeError("bare statements have no idle worker: delays are measured without them")

    async def claim(self, size: int) -> int:
        return len(self._conn.execute(raw.CLAIM, (size,)).fetchall())


class Wide(Limits):
    """The same with pushes into the table that is drained."""

    async def push(self, jobs: list[Job]) -> None:
        with self._conn.transaction():
            for start in range(0, len(jobs), CHUNK):
                chunk = jobs[start : start + CHUNK]
                self._conn.execute(raw.WIDE, ([job.identifier for job in chunk], [_text(job) for job in chunk]))

    async def push_one(self, job: Job) -> None:
        self._conn.execute(
            "INSERT INTO raw.wide (identifier, payload) VALUES (%s, %s::json)", (job.identifier, _text(job))
        )


def _text(job: Job) -> str:
    return json.dumps(job.payload, separators=(",", ":"))


if __name__ == "__main__":
    serve(Limits())
