"""The peers: the program, the measured modes and the tables of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

Mode = Mapping[str, Any]
NONE: Mode = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Spec:
    """A peer as one row of the table."""

    name: str
    script: str
    one: Mode  # one job at a time, one consumer
    best: Mode  # the fastest that was found for one process; see docs/why/evidence/performance.md
    many: Mode  # the same for one of several processes
    serve: Mapping[str, Mode]  # idle workers, by their names in the table
    keeps: str  # the remains of a finished job
    pending: str  # the table of waiting jobs, for copies of one row
    finished: str | None  # that of finished ones; None if they are deleted
    requires: tuple[str, ...] = ()
    drains: bool = True  # whether its worker can end when nothing is left; else it is stopped after some seconds
    singles: int = 1_000
    needs_file: str | None = None
    key: str = "id"
    state: str = "true"  # of a finished job's row
    waiting: str = "true"  # of a waiting job's row
    is_limit: bool = False  # bare SQL, which no queue can beat by much

    @property
    def package(self) -> str:
        """The folder of its virtual environment."""
        return "psycopg" if self.requires == ("psycopg[binary]",) else self.script.split(".")[0]


def _graphile(concurrency: int, queue: int) -> Mode:
    batches = {"localQueue": {"size": queue, "refetchDelay": {"durationMs": 10}}} if queue else {}
    delays = {"completeJobBatchDelay": 0, "failJobBatchDelay": 0} if queue else {}
    return {"worker": {"concurrentJobs": concurrency, "maxPoolSize": concurrency + 1, **batches, **delays}}


TASKQ = Spec(
    name="TaskQ",
    script="taskq.py",
    requires=("psycopg[binary]",),
    one={"size": 1},
    best={"size": 1_000, "threads": 2},
    many={"size": 1_000},
    serve={
        "polls every 10 ms": {"size": 1, "interval": 0.01},
        "polls every 5 ms": {"size": 1, "interval": 0.005},
        "woken by NOTIFY": {"size": 1, "interval": 1.0, "notify": True},
    },
    keeps="state, times, attempts, output",
    pending="taskq_internal.live_shared",
    finished="taskq_internal.ended_shared",
    singles=2_000,
    key="sequence",
)
PGMQ = Spec(
    name="pgmq",
    script="pgmq.py",
    requires=("psycopg[binary]",),
    needs_file="TASKQ_BENCH_PGMQ_SQL",
    one={"size": 1, "end": "archive"},
    best={"size": 1_000, "end": "archive", "threads": 2},
    many={"size": 1_000, "end": "archive"},
    serve={"read_with_poll, every 10 ms": {"size": 1, "end": "archive", "interval_ms": 10}},
    keeps="the message, in its archive; no state, no output",
    pending="pgmq.q_bench",
    waiting="vt <= clock_timestamp()",
    finished="pgmq.a_bench",
    singles=2_000,
    key="msg_id",
)
PGMQ_DELETE = Spec(
    name="pgmq, deleting",
    script="pgmq.py",
    requires=("psycopg[binary]",),
    needs_file="TASKQ_BENCH_PGMQ_SQL",
    one={"size": 1, "end": "delete"},
    best={"size": 1_000, "end": "delete", "threads": 2},
    many={"size": 1_000, "end": "delete"},
    serve={},
    keeps="nothing",
    pending="pgmq.q_bench",
    waiting="vt <= clock_timestamp()",
    finished=None,
    singles=2_000,
    key="msg_id",
)
GRAPHILE = Spec(
    name="graphile-worker",
    script="graphile_worker.js",
    one=_graphile(1, 0),
    best=_graphile(24, 500),
    many=_graphile(24, 500),
    serve={"LISTEN": _graphile(1, 0)},
    keeps="nothing",
    pending="graphile_worker._private_jobs",
    waiting="locked_at IS NULL",
    finished=None,
)
PG_BOSS = Spec(
    name="pg-boss",
    script="pg_boss.js",
    one={"size": 1},
    best={"size": 1_000, "threads": 2},
    many={"size": 1_000},
    serve={"polls every 0.5 s, its least": {"size": 100, "interval": 0.5}},
    keeps="state, times, output of single jobs",
    pending="pgboss.job",
    waiting="state = 'created'",
    finished="pgboss.job",
    state="state = 'completed'",
)
PGQUEUER = Spec(
    name="pgqueuer",
    script="pgqueuer.py",
    requires=("pgqueuer[asyncpg]", "uvloop"),
    one={"batch": 1},
    best={"batch": 500},
    many={"batch": 500},
    serve={"LISTEN": {"batch": 1}},
    keeps="a line in its log; no payload, no output",
    pending="pgqueuer",
    waiting="status = 'queued'",
    finished="pgqueuer_log",
)
OBAN = Spec(
    name="Oban for Python",
    script="oban.py",
    requires=("oban", "psycopg[binary]"),
    one={"limit": 1},
    best={"limit": 1_000},
    many={"limit": 1_000},
    serve={"LISTEN": {"limit": 1}},
    keeps="state, times, errors; no output",
    pending="oban_jobs",
    waiting="state = 'available'",
    finished="oban_jobs",
    state="state = 'completed'",
    drains=False,
)
PROCRASTINATE = Spec(
    name="procrastinate",
    script="procrastinate.py",
    requires=("procrastinate", "psycopg[binary]"),
    one={"concurrency": 1},
    best={"concurrency": 30},
    many={"concurrency": 30},
    serve={"LISTEN": {"concurrency": 1}},
    keeps="state, attempts, events; no output",
    pending="procrastinate_jobs",
    waiting="status = 'todo'",
    finished="procrastinate_jobs",
    state="status = 'succeeded'",
    drains=False,
)

TABLES = Spec(
    name="limit: INSERT into the same tables",
    script="limits.py",
    requires=("psycopg[binary]",),
    one=NONE,
    best=NONE,
    many=NONE,
    serve={},
    keeps="",
    pending="raw.live",
    finished=None,
    singles=2_000,
    drains=False,
    is_limit=True,
)
WIDE = Spec(
    name="limit: one table, claim and finish as bare updates",
    script="limits_wide.py",
    requires=("psycopg[binary]",),
    one={"size": 1},
    best={"size": 1_000, "threads": 2},
    many={"size": 1_000},
    serve={},
    keeps="state, times, output",
    pending="raw.wide",
    waiting="state = 1",
    finished="raw.wide",
    singles=2_000,
    key="sequence",
    state="state = 6",
    is_limit=True,
)

SPECS = {
    "taskq": TASKQ,
    "pgmq": PGMQ,
    "pgmq-delete": PGMQ_DELETE,
    "graphile-worker": GRAPHILE,
    "pg-boss": PG_BOSS,
    "pgqueuer": PGQUEUER,
    "oban": OBAN,
    "procrastinate": PROCRASTINATE,
    "limit-tables": TABLES,
    "limit-wide": WIDE,
}
