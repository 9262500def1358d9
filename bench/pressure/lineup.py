"""The peers under pressure: the program of each, the mode of its worker, and the table that readers count."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from bench.peers.specs import GRAPHILE, OBAN, PG_BOSS, PGMQ, PGQUEUER, PROCRASTINATE, TASKQ, Mode, Spec
from bench.worker import WORKER

AWA = Spec(
    name="awa",
    script="awa.py",
    requires=("awa-pg", "uvloop"),
    one={"workers": 1, "connections": 10},
    best={"workers": 1_024, "connections": 20},
    many={"workers": 1_024, "connections": 20},
    serve={"LISTEN": {"workers": 1, "connections": 10}},
    keeps="state, times",
    pending="awa.ready_entries",
    finished=None,
    drains=False,
)
PGQUE = Spec(
    name="PgQue",
    script="pgque.py",
    requires=("pgque-py", "psycopg[binary]"),
    needs_file="TASKQ_BENCH_PGQUE_SQL",
    one={},
    best={},
    many={},
    serve={"LISTEN": {}},
    keeps="the message, until its table is rotated",
    pending="pgque.event_1",
    finished=None,
    drains=False,
)
ABSURD = Spec(
    name="Absurd",
    script="absurd.py",
    requires=("absurd-sdk", "absurdctl", "psycopg[binary]"),
    one={"concurrency": 1, "batch": 1, "interval": 0.01},
    best={"concurrency": 256, "batch": 256, "interval": 0.05},
    many={"concurrency": 256, "batch": 256, "interval": 0.05},
    serve={"polls every 10 ms": {"concurrency": 1, "batch": 1, "interval": 0.01}},
    keeps="state, times, output",
    pending="absurd.r_bench",
    finished="absurd.r_bench",
    drains=False,
)


@dataclass(frozen=True, slots=True)
class Contender:
    """A peer and the mode in which its worker runs: its best mode, waiting for jobs."""

    spec: Spec
    mode: Mode
    color: str  # of its line in the charts

    @property
    def table(self) -> str:
        """The table of its waiting jobs."""
        return self.spec.pending


LINEUP: Mapping[str, Contender] = MappingProxyType(
    {
        "taskq": Contender(
            replace(WORKER, name=TASKQ.name),
            {"size": 1_000, "workers": 2, "interval": 0.05, "notify": True},
            "#d6336c",
        ),
        "pgmq": Contender(PGMQ, {"size": 1_000, "end": "archive", "interval_ms": 10, "reconnect": True}, "#3b82f6"),
        "graphile-worker": Contender(GRAPHILE, GRAPHILE.best, "#2b9a66"),
        "pg-boss": Contender(PG_BOSS, {"size": 1_000, "threads": 2, "pause": 0.05}, "#b8860b"),
        "pgqueuer": Contender(PGQUEUER, PGQUEUER.best, "#8a63d2"),
        "oban": Contender(OBAN, OBAN.best, "#0e9aa7"),
        "awa": Contender(AWA, AWA.best, "#e8590c"),
        "pgque": Contender(PGQUE, PGQUE.best, "#84a000"),
        "absurd": Contender(ABSURD, ABSURD.best, "#868e96"),
        "procrastinate": Contender(PROCRASTINATE, PROCRASTINATE.best, "#8c6d5a"),
    }
)
