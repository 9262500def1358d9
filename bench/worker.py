"""The worker and those of the other queues for Python: a no-op handler, each in its best mode, on one server."""

import argparse
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench.peers import measures, table
from bench.peers.compare import SMALL, installed, write_payloads
from bench.peers.measures import Scale
from bench.peers.specs import OBAN, PGQUEUER, PROCRASTINATE, TASKQ
from bench.rig import Rig

WORKER = replace(
    TASKQ,
    name="TaskQ's worker",
    script="worker.py",
    one={"size": 1},
    best={"size": 1_000, "workers": 2},
    many={"size": 1_000},
    serve={
        "pauses 10 ms": {"size": 1, "interval": 0.01},
        "woken by NOTIFY": {"size": 1, "interval": 1.0, "notify": True},
        "woken by the push": {"size": 1, "interval": 1.0, "policy": True},
    },
)
PEERS = (WORKER, PGQUEUER, OBAN, PROCRASTINATE)
COLUMNS = {"drain best": "best mode, jobs/s", "drain one": "one at a time, jobs/s"}
MANY = {"drain many": "four processes, jobs/s"}


def run(rig: Rig, options: argparse.Namespace) -> None:
    """Measures drains in the best mode, one at a time and by four processes, and the delay of an idle worker."""
    scale = SMALL if options.small else Scale(rounds=options.rounds)
    with tempfile.TemporaryDirectory(prefix="taskq-bench-") as folder:
        payloads = write_payloads(Path(folder), max(scale.jobs, measures.BACKLOG_OF_ONES))
        peers = installed(PEERS, options.cache, payloads)
        figures = measures.rounds(scale, peers, partial(measures.push_and_drain, rig, scale))
        table.rates("Workers with a no-op handler: median [range], times as fast", figures, COLUMNS, WORKER.name)
        figures = measures.rounds(scale, peers, partial(measures.drain_by_many, rig, scale))
        table.rates("The same by four processes", figures, MANY, WORKER.name)
        rows = (row for peer in peers for row in measures.latencies(rig, scale, peer))
        table.percentiles(f"Push to handler start at {scale.rate:.0f}/s, idle worker, ms", rows)
