"""Measures the named sections, compared with raw SQL; without a name: push, drain and claim.

`singular`: polls with and without a condition. `topics`: by the number of topics and of their partitions.
`displacing`: pushes with SUPERSEDE, REPLACE and DELETE, compared with APPEND by the CPU of the server (`--pushed`,
`--stored`, `--rounds`; hours with the defaults).
`weight`: server CPU and WAL of a push and a drain, by index, table and step (`--rounds`).
`waits`: ten thousand of Airflow's deferred gates in one event loop. `gates`: 500 gates in a real Airflow.
`upkeep`: minutes of churn, with long transactions in between (9 minutes). `retention`: the removal of a history.
`upgrades`: the next release changes the schema of five million tasks, while a program works (10 minutes).
`designs`: the table designs that were compared. `peers`: other queues, which are installed when needed.
`spark`: drains compared with code written by hand, single modes, cores, memory (`--parts` selects parts, `--tasks`
sets the tasks of the memory part). `worker`: the worker and the workers of the Python peers (`--rounds`, `--small`,
`--cache` as for `peers`). `pressure`: the queues under the shapes of the public benchmark, with charts (`--shapes`,
`--seconds`, `--rate`, `--to`, `--only`). `faults`: what becomes of the jobs of each queue whose worker, server or
network fails (`--faults`, `--seconds`, `--rate`, `--only`). `snapshots`, alone: claims during long transactions, minute
by minute (`snapshots --help` lists its options; hours with the defaults).
"""

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial

from bench import (
    claim,
    designs,
    displacing,
    drain,
    gates,
    push,
    retention,
    singular,
    snapshots,
    topics,
    upgrades,
    upkeep,
    waits,
    weight,
    worker,
)
from bench.peers import compare
from bench.pressure import faults
from bench.pressure import section as pressure
from bench.rig import Rig
from bench.spark import section as spark
from demo.postgres import EmbeddedPostgres

SECTIONS = {
    "push": push.run,
    "drain": drain.run,
    "claim": claim.run,
    "singular": singular.run,
    "topics": topics.run,
    "upkeep": upkeep.run,
    "retention": retention.run,
    "upgrades": upgrades.run,
    "waits": waits.run,
    "gates": gates.run,
    "designs": designs.run,
}
USUAL = ("push", "drain", "claim")
WITH_OPTIONS = ("displacing", "weight", "peers", "spark", "worker", "pressure", "faults")
ALONE = {"pressure": pressure.run, "faults": faults.run}  # their runs restart servers, so each has its own


def main() -> None:
    """Runs the sections one after the other, each on databases of its own."""
    if sys.argv[1:2] == ["snapshots"]:  # its servers and its options are its own
        snapshots.run(snapshots.parse(sys.argv[2:]))
        return
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("section", nargs="*", choices=[*SECTIONS, *WITH_OPTIONS], default=USUAL)
    compare.add_arguments(parser)
    spark.add_arguments(parser)
    pressure.add_arguments(parser)
    faults.add_arguments(parser)
    displacing.add_arguments(parser)
    options = parser.parse_args()
    if len(options.section) == 1 and (alone := ALONE.get(options.section[0])):
        alone(options)
        return
    if given := os.environ.get("TASKQ_DSN"):
        _run(Rig(given), options)
        return
    with EmbeddedPostgres() as server:
        _run(Rig(server.dsn), options)


def _run(rig: Rig, options: argparse.Namespace) -> None:
    sections: dict[str, Callable[[Rig], None]] = {
        **SECTIONS,
        "displacing": partial(displacing.run, options=options),
        "weight": lambda rig: weight.run(rig, options.rounds),
        "peers": partial(compare.run, options=options),
        "spark": partial(spark.run, options=options),
        "worker": partial(worker.run, options=options),
        "pressure": lambda _rig: pressure.run(options),
        "faults": lambda _rig: faults.run(options),
    }
    for section in options.section:
        sections[section](rig)


if __name__ == "__main__":
    main()
