"""A peer in a database of its own: started, filled, cloned and drained."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from airflow_provider_taskq.queue import connect
from bench.peers.process import Process
from bench.peers.specs import Mode, Spec
from bench.rig import Rig, url


@dataclass(frozen=True, slots=True)
class Started:
    """A peer that can be started as often as needed."""

    spec: Spec
    command: list[str]
    environment: dict[str, str]
    payloads: Path

    @contextmanager
    def site(self, rig: Rig) -> Iterator["Site"]:
        """The peer in a fresh database, its schema made."""
        with rig.empty_database() as dsn, ExitStack() as stack:
            site = Site(self, url(dsn), stack)
            site.first.ask("install")
            yield site


class Site:
    """One database with processes of one peer."""

    def __init__(self, started: Started, dsn: str, stack: ExitStack) -> None:
        self._started = started
        self._stack = stack
        self.spec = started.spec
        self.dsn = dsn
        self.first = self.process()

    def process(self) -> Process:
        """One more process, connected."""
        process = self._stack.enter_context(Process(self._started.command, self._started.environment))
        process.ask("open", dsn=self.dsn, payloads=str(self._started.payloads))
        return process

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Runs a statement of the benchmark's own."""
        with connect(self.dsn, autocommit=True) as conn:
            found = conn.execute(statement.encode())
            return found.fetchall() if found.description else []

    def vacuum(self) -> None:
        """Updates the statistics, removes dead rows, and makes the pending checkpoint."""
        self.execute("VACUUM ANALYZE")
        self.execute("CHECKPOINT")

    def drain(self, mode: Mode, count: int, seconds: float | None, processes: int = 1) -> float:
        """Jobs a second, from the first handler's start until all that was done is settled.

        A drain to the end has to handle each job once; one with a time limit counts the jobs that it handled.
        """
        workers = [self.first, *(self.process() for _ in range(processes - 1))]
        most = count if processes == 1 and seconds else None
        for worker in workers:
            worker.send("drain", most=most, seconds=seconds, settled=True, mode=mode)
        done = [worker.answer() for worker in workers]
        handled = sum(one["handled"] for one in done)
        if seconds is None and handled != count:
            raise RuntimeError(f"{self.spec.name} handled {handled} of {count} jobs")
        start = min(one["first"] for one in done if one["handled"])
        return float(handled / (max(one["last"] for one in done) - start))

    def drain_ones(self, count: int, seconds: float) -> float:
        """Jobs a second of one consumer that takes them one at a time, from handler to handler."""
        done = self.first.ask("drain", most=count, seconds=seconds, settled=False, mode=self.spec.one)
        return float(done["handled"] / max(done["last"] - done["first"], 1e-9))

    def clone_pending(self, count: int) -> None:
        """Copies of one waiting job, which was pushed before."""
        if self.spec.script == "taskq.py":
            self.execute(TASKQ_PENDING.format(count=count))
        else:
            self._clone(self.spec.pending, count, self.spec.waiting)

    def clone_finished(self, count: int) -> None:
        """Copies of one finished job, which was handled before."""
        if self.spec.script == "taskq.py":
            self.execute(TASKQ_FINISHED.format(count=count))
        elif self.spec.finished:
            self._clone(self.spec.finished, count, self.spec.state)

    def _clone(self, table: str, count: int, condition: str) -> None:
        """Copies a row with all its columns, but those that are made for each; triggers are left out."""
        with psycopg.connect(self.dsn) as conn:
            rows = conn.execute(COLUMNS, (table,)).fetchall()
            names = [row[0] for row in rows if row[0] != self.spec.key or not row[1]]
            values = [f"10000000 + n AS {name}" if name == self.spec.key else f"s.{name}" for name in names]
            conn.execute("SET session_replication_role = replica")
            conn.execute(
                f"INSERT INTO {table} ({', '.join(names)}) SELECT {', '.join(values)}"
                f" FROM (SELECT * FROM {table} WHERE {condition} LIMIT 1) s, generate_series(1, {count}) n".encode()
            )


COLUMNS = (
    "SELECT quote_ident(attname), atthasdef OR attidentity <> '' FROM pg_attribute"
    " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum"
)
TASKQ_COPY = """
WITH n AS MATERIALIZED (SELECT nextval('taskq_internal.task_sequence') AS sequence FROM generate_series(1, {{count}})),
task AS (
    INSERT INTO taskq_internal.task (sequence, created, due, pushed_in, topic_id, priority, identifier,
        reference, ttl, payload)
    SELECT n.sequence, created, due, pushed_in, topic_id, priority, identifier, reference, ttl, payload
    FROM n, (SELECT * FROM taskq_internal.task LIMIT 1) s)
{insert}"""
TASKQ_PENDING = TASKQ_COPY.format(
    insert="INSERT INTO taskq_internal.live (sequence, available_at, topic_id, priority, identifier)"
    " SELECT n.sequence, due, topic_id, priority, identifier FROM n, (SELECT * FROM taskq_internal.task LIMIT 1) s"
)
TASKQ_FINISHED = TASKQ_COPY.format(
    insert="INSERT INTO taskq_internal.ended (sequence, completed, available_at, holder, topic_id,"
    " attempt, state, identifier,"
    " output) SELECT n.sequence, completed, available_at, holder, topic_id, attempt, state, identifier, output"
    " FROM n, (SELECT * FROM taskq_internal.ended LIMIT 1) s"
)
